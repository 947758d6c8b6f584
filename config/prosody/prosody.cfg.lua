-- Prosody 0.12 or later behind Vestibule: what to put into /etc/prosody/prosody.cfg.lua, and why.
--
-- Vestibule's side of it:
--
--   [[upstream]]                        [[upstream]]
--   name = "prosody"                    name = "prosody-s2s"
--   proxy_protocol = "v2"               proxy_protocol = "v2"
--   [[upstream.backend]]                [[upstream.backend]]
--   address = "127.0.0.1:5322"          address = "127.0.0.1:5369"
--
-- The tests of Vestibule run this very file, with other ports and paths.

-- Prosody's own ports on the network: none. A port that Prosody opened by itself would let clients in
-- beside Vestibule, and would be in the way of its 5222 and 5269.
c2s_ports = {}
c2s_direct_tls_ports = {}
s2s_ports = {}
s2s_direct_tls_ports = {}

-- mod_vestibule.lua lies beside this file: copy it to this folder.
plugin_paths = { "/usr/local/lib/prosody/modules" }

modules_enabled = {
	"vestibule"; -- the ports below
	"saslauth"; "tls"; "dialback"; "roster"; "disco"; "ping"; "carbons"; "pep"; "blocklist"; "limits";
	"smacks"; -- XEP-0198: clients resume their session when Vestibule is restarted
}

-- Streams from Vestibule. Each must start with a PROXY header, which brings the client's address and
-- says whether TLS was spoken. Loopback only: who reaches these ports may claim any address.
vestibule_interfaces = { "127.0.0.1" }
vestibule_ports = { 5322 }
vestibule_s2s_interfaces = { "127.0.0.1" }
vestibule_s2s_ports = { 5369 }
vestibule_trusted_proxies = { "127.0.0.1" }

-- Offer SCRAM-*-PLUS. Vestibule's upstream then needs "binding" among its proxy_tlvs.
vestibule_channel_binding = true

-- Both stay strict: a stream that Vestibule decrypted counts as encrypted, no other does.
c2s_require_encryption = true
s2s_require_encryption = true

-- Servers whose streams Vestibule passes through show their certificates to Prosody, so "true" is
-- possible. Servers whose streams it decrypts can only use dialback: that needs "false".
s2s_secure_auth = false

-- Outgoing server streams and passed-through ones need Prosody's own certificates, as ever.
certificates = "/etc/prosody/certs"

-- Rates count per client, since Prosody knows each client's address.
limits = { c2s = { rate = "256kb/s" }; s2sin = { rate = "512kb/s" } }

authentication = "internal_hashed"
password_hash = "SHA-256" -- for SCRAM-SHA-256 and its -PLUS

VirtualHost "chat.test"

-- Without the module, on a port that takes no PROXY header (proxy_protocol = "off" in Vestibule), every
-- client has Vestibule's address, and Prosody must be told for the host that plain streams are fine.
-- Never do that on a port that others can reach:
--
--   c2s_ports = { 5422 }; c2s_interfaces = { "127.0.0.1" }   -- global, above
--   VirtualHost "other.test"
--     c2s_require_encryption = false
--     allow_unencrypted_plain_auth = true
--
-- Prosody then offers STARTTLS inside TLS; Vestibule takes the offer out. (modules_disabled = { "tls" }
-- would end it, and TLS with other servers, too.)
