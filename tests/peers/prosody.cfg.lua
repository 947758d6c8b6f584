-- Prosody as a backend of the real-peer tests: plain XMPP on loopback, TLS is done in front of it.
-- PEERS_STATE and PEERS_PORT come from chat.py.
local state = assert(os.getenv("PEERS_STATE"), "PEERS_STATE is unset")

daemonize = false
pidfile = state .. "/prosody.pid"
data_path = state .. "/data"
log = { { levels = { min = "info" }, to = "console" } }

interfaces = { "127.0.0.1" }
c2s_ports = { tonumber(os.getenv("PEERS_PORT")) }
c2s_direct_tls_ports = {}
s2s_ports = {}
s2s_direct_tls_ports = {}
http_ports = {}
https_ports = {}

modules_enabled = { "roster", "saslauth", "disco", "ping", "smacks" }
-- The client is inside TLS already: a second <starttls/> would only confuse it.
modules_disabled = { "tls", "s2s" }
-- Prosody cannot see the TLS in front of it, so it must be told that plain is fine here.
c2s_require_encryption = false
allow_unencrypted_plain_auth = true

authentication = "internal_hashed"
VirtualHost "chat.test"
