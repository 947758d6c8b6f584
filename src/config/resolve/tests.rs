//! What the settings come to, and what bad ones are told: the messages are part of the surface.

use super::super::{Http, ListenerId, Protocol, Route};
use super::*;
use proptest::prelude::*;

const MACHINE: Machine = Machine {
    cpus: 2,
    memory: 1 << 30,
};

/// Settings that hold, for a test to add to; ten lines.
const SOUND: &str = "\
[[listener]]
listen = \"tls://127.0.0.1:8443\"
upstream = \"chat\"
[[upstream]]
name = \"chat\"
[[upstream.backend]]
address = \"chat:5222\"
[[certificate]]
cert = \"a.pem\"
key = \"a.key\"
";

fn resolve(text: &str) -> Config {
    let config = File::parse(text).and_then(|file| file.resolve_on(MACHINE));
    config.unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that is wrong with a file, by the way a user goes: reading on after a fault.
fn faults(text: &str) -> String {
    let path = std::env::temp_dir().join(format!(
        "vestibule-faults-{}-{:?}.toml",
        std::process::id(),
        std::thread::current().id()
    ));
    fs::write(&path, text).unwrap();
    let result = File::open(&path).resolve_on(MACHINE);
    fs::remove_file(&path).unwrap();
    let told = result.unwrap_err().to_string();
    told.replace(&path.display().to_string(), "v.toml")
}

/// What flags alone come to.
fn flags(lists: FlagLists) -> Result<Config, ConfigError> {
    let file = File {
        flags: lists,
        ..File::default()
    };
    file.resolve_on(MACHINE)
}

fn pair(forwards: &[&str]) -> FlagLists {
    FlagLists {
        forwards: forwards.iter().map(ToString::to_string).collect(),
        certs: vec!["a.pem".into()],
        keys: vec!["a.key".into()],
        ..FlagLists::default()
    }
}

#[test]
fn one_fault_in_a_file_is_told_with_its_key_and_line() {
    // Each is put behind SOUND, so its first line is the eleventh.
    let cases = [
        (
            "[limits]\nbacklogg = 5",
            "limits.backlogg: unknown key in [limits]; did you mean backlog? (v.toml, line 12)",
        ),
        (
            "[limits]\ncolour = 5",
            "limits.colour: unknown key in [limits]; known there: backlog, max_connections, max_connections_per_ip (v.toml, line 12)",
        ),
        (
            "[timeout]\nidle = \"1s\"",
            "timeout: unknown key at the top of the file; did you mean timeouts? (v.toml, line 11)",
        ),
        (
            "[[entrance]]\nhost = \"x\"",
            "entrance: unknown key at the top of the file; known there: admin, buffers, certificate, http, limits, listener, log, route, sockets, timeouts, tls, upstream, workers, xmpp (v.toml, line 11)",
        ),
        (
            "[limits]\nbacklog = \"many\"",
            "limits.backlog: \"many\" is not a whole number; write digits, such as 1000 (v.toml, line 12)",
        ),
        (
            "[limits]\nbacklog = [1]",
            "limits.backlog: a list does not belong here; write one value (v.toml, line 12)",
        ),
        (
            "[limits]\nbacklog = 0",
            "limits.backlog: 0 is out of range; write 1 to 65535 (v.toml, line 12)",
        ),
        (
            "[limits]\nmax_connections = 0",
            "limits.max_connections: 0 is out of range; write 1 to 500000000 (v.toml, line 12)",
        ),
        (
            "limits = 5",
            "certificate.1.limits: unknown key in [certificate]; it belongs to the top of the file (v.toml, line 11)",
        ),
        (
            "workers = 5",
            "certificate.1.workers: unknown key in [certificate]; it belongs to the top of the file (v.toml, line 11)",
        ),
        (
            "[limits]\nidle = 5",
            "limits.idle: unknown key in [limits]; it belongs to [timeouts] (v.toml, line 12)",
        ),
        (
            "[limits]\nkeepalive = 5",
            "limits.keepalive: unknown key in [limits]; it belongs to [listener] or [sockets] (v.toml, line 12)",
        ),
        (
            "[limits]\n\"a\\nb\" = 5",
            "limits.a\\nb: unknown key in [limits]; known there: backlog, max_connections, max_connections_per_ip (v.toml, line 12)",
        ),
        (
            "[buffers]\npool = \"yes\"",
            "buffers.pool: a text does not belong here; write true or false (v.toml, line 12)",
        ),
        (
            "[buffers]\nbuffer_size = 512",
            "buffers.buffer_size: 512 is out of range; write 1KiB to 1MiB (v.toml, line 12)",
        ),
        (
            "[buffers]\nbuffer_size = \"2MiB\"",
            "buffers.buffer_size: 2MiB is out of range; write 1KiB to 1MiB (v.toml, line 12)",
        ),
        (
            "[buffers]\npool_size = \"639KiB\"",
            "buffers.pool_size: 639KiB is too small for 2 workers that read up to 64KiB at once; write 640KiB or more, or auto (v.toml, line 12)",
        ),
        (
            "[buffers]\npool_size = \"2TiB\"",
            "buffers.pool_size: more than any machine has; write 640KiB or more, or auto (v.toml, line 12)",
        ),
        (
            "[buffers]\npool_size = \"x\"",
            "buffers.pool_size: \"x\" is not a size; write bytes (65536) or a number with a unit (64KiB, 16MiB), or auto (v.toml, line 12)",
        ),
        (
            "[sockets]\nfront_recv_buffer = 100",
            "sockets.front_recv_buffer: 100 is out of range; write 2KiB to 1GiB (v.toml, line 12)",
        ),
        (
            "[sockets]\nkeepalive = \"1s\"",
            "sockets.keepalive: 1s is out of range; write 6s to 9h, or 0 (v.toml, line 12)",
        ),
        (
            "[sockets]\nuser_timeout = \"2days\"",
            "sockets.user_timeout: 2d is out of range; write 1s to 1d, or 0 (v.toml, line 12)",
        ),
        (
            "[timeouts]\nidle = 60",
            "timeouts.idle: \"60\" has no unit; write 60s, 60m, or 0 for never (v.toml, line 12)",
        ),
        (
            "[timeouts]\nidle = \"1year\"",
            "timeouts.idle: 1year is out of range; write 1ms to 30d, or 0 (v.toml, line 12)",
        ),
        (
            "[timeouts]\nstall = 0",
            "timeouts.stall: 0 is out of range; write 100ms to 1h (v.toml, line 12)",
        ),
        (
            "[tls]\nmin = 1.1",
            "tls.min: TLS 1.1 is broken and not served; write 1.2 or 1.3 (v.toml, line 12)",
        ),
        (
            "[tls]\ncert_dir = \"\"",
            "tls.cert_dir: the path is empty; name a file or folder (v.toml, line 12)",
        ),
        (
            "[tls]\ncert_dir = \"/nonexistent\"",
            "tls.cert_dir: cannot read /nonexistent: No such file or directory (os error 2); name a folder that this user may read (v.toml, line 12)",
        ),
        (
            "[admin]\naddress = \"0.0.0.0:9090\"",
            "admin.address: 0.0.0.0:9090 is not loopback, and the admin listener asks for no password; use 127.0.0.1:9090, [::1]:9090 or unix:PATH (v.toml, line 12)",
        ),
        (
            "[admin]\naddress = \"127.0.0.1:8443\"",
            "admin.address: listener \"tls-8443\" serves 127.0.0.1:8443; give the admin listener an address of its own (v.toml, line 12)",
        ),
        (
            "[log]\nlevel = \"loud\"",
            "log.level: \"loud\" is not known here; write off, error, warn, info, debug or trace (v.toml, line 12)",
        ),
        (
            "[[listener]]\nlisten = \"wss://0.0.0.0:5222\"\nupstream = \"chat\"",
            "listener.2.listen: scheme \"wss\" is not known; use tls, xmpp, xmpps, xmpp-server, xmpps-server, https, http or auto (v.toml, line 12)",
        ),
        (
            "[[listener]]\nupstream = \"chat\"",
            "listener.2.listen: missing; write listen = \"SCHEME://ADDR:PORT\", such as \"xmpp://0.0.0.0:5222\" (v.toml, line 11)",
        ),
        (
            "[[listener]]\nlisten = \"tls://[::]:1\"",
            "listener.tls-1.upstream: missing; name an upstream: chat (v.toml, line 11)",
        ),
        (
            "[[listener]]\nlisten = \"tls://[::]:1\"\nupstream = \"chatt\"",
            "listener.tls-1.upstream: no upstream is named \"chatt\"; did you mean chat? (v.toml, line 13)",
        ),
        (
            "[[listener]]\nlisten = \"tls://[::]:1\"\nupstream = \"xyz\"",
            "listener.tls-1.upstream: no upstream is named \"xyz\"; known are chat (v.toml, line 13)",
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"tls://127.0.0.1:8443\"\nupstream = \"chat\"",
            "listener.b.listen: 127.0.0.1:8443 is served by listener \"tls-8443\" too; give each listener an address of its own (v.toml, line 13)",
        ),
        (
            "[[listener]]\nname = \"tls-8443\"\nlisten = \"tls://127.0.0.1:1\"\nupstream = \"chat\"\n[[listener]]\nname = \"tls-8443\"\nlisten = \"tls://127.0.0.1:2\"\nupstream = \"chat\"",
            "listener.3.name: another listener is named \"tls-8443\"; give each a name of its own (v.toml, line 16)",
        ),
        (
            "[[listener]]\nname = \"b b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"",
            "listener.2.name: \"b b\" cannot be a name; write 1 to 64 letters, digits or -, _, . or : (v.toml, line 12)",
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"\nalpn = [\"x\", \"x\"]",
            "listener.b.alpn: \"x\" is there twice; name each protocol once (v.toml, line 15)",
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"\nalpn = [\"\"]",
            "listener.b.alpn: \"\" cannot be an ALPN protocol; write 1 to 255 bytes, such as xmpp-client (v.toml, line 15)",
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"\nalpn = \"x\"",
            "listener.b.alpn: a text does not belong here; write a list of texts: [\"...\", \"...\"] (v.toml, line 15)",
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"\nback_send_buffer = 1",
            "listener.b.back_send_buffer: 1 is out of range; write 2KiB to 1GiB (v.toml, line 15)",
        ),
        (
            "[[upstream]]\nname = \"chat\"\n[[upstream.backend]]\naddress = \"b:1\"",
            "upstream.2.name: another upstream has this name; give each its own (v.toml, line 12)",
        ),
        (
            "[[upstream]]\nname = \"b\"",
            "upstream.b.backend: missing; add [[upstream.backend]] with address = \"HOST:PORT\" (v.toml, line 11)",
        ),
        (
            "[[upstream]]\n[[upstream.backend]]\naddress = \"b:1\"",
            "upstream.2.name: missing; name it, so that a listener can refer to it (v.toml, line 11)",
        ),
        (
            "[[upstream]]\nname = \"b\"\n[[upstream.backend]]\naddress = \"chat\"",
            "upstream.b.backend.1.address: \"chat\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH (v.toml, line 14)",
        ),
        (
            "[[upstream]]\nname = \"b\"\n[[upstream.backend]]\nadress = \"chat:1\"",
            "upstream.b.backend.1.adress: unknown key in [upstream.backend]; did you mean address? (v.toml, line 14)",
        ),
        (
            "[[upstream]]\nname = \"b\"\n[[upstream.backend]]\n[[upstream.backend]]\naddress = \"chat:1\"",
            "upstream.b.backend.1.address: missing; write address = \"HOST:PORT\" (v.toml, line 13)",
        ),
        (
            "[[upstream]]\nname = \"b\"\n[[upstream.backend]]\naddress = \"b:1\"\n[[upstream.backend]]\naddress = \"b:1\"",
            "upstream.b.backend.2.address: b:1 is there twice; name each backend once (v.toml, line 16)",
        ),
        (
            "[[certificate]]\ncert = \"b.pem\"",
            "certificate.2.key: missing; name the PEM file of the private key (v.toml, line 11)",
        ),
        (
            "[[certificate]]\nkey = \"b.key\"",
            "certificate.2.cert: missing; name the PEM file of the chain (v.toml, line 11)",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(faults(&format!("{SOUND}{text}\n")), message, "{text}");
    }
    for (text, message) in [
        (
            "workers = 0\n",
            "workers: 0 is out of range; write 1 to 1024 (v.toml, line 1)",
        ),
        (
            "workers = 1.5\n",
            "workers: \"1.5\" is not a whole number; write digits, such as 1000, or auto (v.toml, line 1)",
        ),
        (
            "workers = 1979-05-27\n",
            "workers: a date or time does not belong here; write one value (v.toml, line 1)",
        ),
        (
            "limits = 5\n",
            "limits: a number does not belong here; write a table: [limits] (v.toml, line 1)",
        ),
    ] {
        assert_eq!(faults(&format!("{text}{SOUND}")), message, "{text}");
    }
}

/// [`SOUND`], for a test that adds routes: an XMPP listener and a second upstream behind it, so that the first line
/// of what is added is the eighteenth.
fn with_clients(text: &str) -> String {
    format!(
        "{SOUND}\
[[listener]]
name = \"clients\"
listen = \"xmpp://127.0.0.1:5222\"
upstream = \"chat\"
[[upstream]]
name = \"other\"
backend = [{{ address = \"other:5222\" }}]
{text}"
    )
}

#[test]
fn one_fault_about_xmpp_is_told_with_its_key_and_line() {
    // Each is put behind SOUND.
    let listener =
        "[[listener]]\nname = \"b\"\nlisten = \"xmpp-server://[::]:1\"\nupstream = \"chat\"\n";
    let upstream = "[[upstream]]\nname = \"b\"\nbackend = [{ address = \"tls://b:1\" }, { address = \"b:1\" }]\n";
    for (table, text, message) in [
        (
            listener,
            "tls = \"off\"",
            "listener.b.tls: \"off\" is not known here; write terminate or passthrough (v.toml, line 15)",
        ),
        (
            listener,
            "alpn = [\"xmpp-server\"]",
            "listener.b.alpn: TLS passes through here, so the backend chooses the protocol; take alpn away, or write tls = \"terminate\" (v.toml, line 15)",
        ),
        (
            listener,
            "domains = [\"Chat.Example\", \"chat.example.\"]",
            "listener.b.domains: \"chat.example.\" is there twice; name each once (v.toml, line 15)",
        ),
        (
            listener,
            "domains = [\"chat example\", \"*\"]",
            "listener.b.domains: \"chat example\" is not a domain; write a domain such as chat.example, or *.chat.example for all names one label below it (v.toml, line 15)\n\
             listener.b.domains: \"*\" is not a domain; leave the list empty for any (v.toml, line 15)",
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"\n",
            "domains = [\"chat.example\"]",
            "listener.b.domains: a listener with scheme tls knows no XMPP domains; choose another scheme, or take domains away (v.toml, line 15)",
        ),
        (
            listener,
            "accept_proxy_protocol = [\"10.0.0.1/8\"]",
            "listener.b.accept_proxy_protocol: 10.0.0.1/8 is an address within a network; write 10.0.0.0/8 for the network, or 10.0.0.1 for the address alone (v.toml, line 15)",
        ),
        (
            listener,
            "accept_proxy_protocol = [\"unix:/run/x\"]",
            "listener.b.accept_proxy_protocol: \"unix:/run/x\" is not a network; write an address such as 192.0.2.1, or ADDR/BITS such as 10.0.0.0/8 (v.toml, line 15)",
        ),
        (
            listener,
            "accept_proxy_protocol = [\"10.0.0.1\", \"10.0.0.1/32\"]",
            "listener.b.accept_proxy_protocol: \"10.0.0.1/32\" is there twice; name each once (v.toml, line 15)",
        ),
        (
            upstream,
            "proxy_protocol = 2",
            "upstream.b.proxy_protocol: \"2\" is not known here; write off, v1 or v2 (v.toml, line 14)",
        ),
        (
            upstream,
            "proxy_tlvs = [\"alpn\"]",
            "upstream.b.proxy_tlvs: only version 2 of the PROXY protocol has such fields; write proxy_protocol = \"v2\", or take proxy_tlvs away (v.toml, line 14)",
        ),
        (
            upstream,
            "proxy_protocol = \"v1\"\nproxy_tlvs = []",
            "upstream.b.proxy_tlvs: only version 2 of the PROXY protocol has such fields; write proxy_protocol = \"v2\", or take proxy_tlvs away (v.toml, line 15)",
        ),
        (
            upstream,
            "proxy_protocol = \"v2\"\nproxy_tlvs = [\"ssl\", \"sni\", \"ssl\"]",
            "upstream.b.proxy_tlvs: \"sni\" is not known here; write alpn, authority, unique_id, ssl, crc32c or binding (v.toml, line 15)\n\
             upstream.b.proxy_tlvs: \"ssl\" is there twice; name each once (v.toml, line 15)",
        ),
        (
            upstream,
            "starttls = \"speak\"",
            "upstream.b.starttls: tls://b:1 is encrypted already; write that backend without TLS, or take starttls away (v.toml, line 14)",
        ),
        (
            "[xmpp]\n",
            "guard = false\nguard_depth = 9\nguard_bytes = \"8KiB\"",
            "xmpp.guard_bytes: holds for nothing, since the guard is off; write guard = true, or take this away (v.toml, line 14)\n\
             xmpp.guard_depth: holds for nothing, since the guard is off; write guard = true, or take this away (v.toml, line 13)",
        ),
        (
            "[xmpp]\n",
            "guard_element_size = 100",
            "xmpp.guard_element_size: 100 is out of range; write 1KiB to 1MiB (v.toml, line 12)",
        ),
        (
            "[xmpp]\n",
            "guard_bytes = 100",
            "xmpp.guard_bytes: 100 is out of range; write 4KiB to 16MiB (v.toml, line 12)",
        ),
        (
            "[xmpp]\n",
            "guard_elements = 3",
            "xmpp.guard_elements: 3 is out of range; write 4 to 10000 (v.toml, line 12)",
        ),
        (
            "[xmpp]\n",
            "guard_depth = 101",
            "xmpp.guard_depth: 101 is out of range; write 3 to 100 (v.toml, line 12)",
        ),
        (
            "[xmpp]\n",
            "element_size = 9999",
            "xmpp.element_size: 9999 is out of range; write 10000 to 1GiB, or 0 (v.toml, line 12)",
        ),
        (
            "[xmpp]\n",
            "on_drain = \"see-other-host=a b\"",
            "xmpp.on_drain: \"a b\" is not a host; write HOST or HOST:PORT, an IPv6 address in brackets (v.toml, line 12)",
        ),
        (
            "[timeouts]\n",
            "authentication = \"31d\"",
            "timeouts.authentication: 31d is out of range; write 1ms to 30d, or 0 (v.toml, line 12)",
        ),
    ] {
        let told = faults(&format!("{SOUND}{table}{text}\n"));
        assert_eq!(told, message, "{text}");
    }
}

#[test]
fn one_fault_about_routes_is_told_with_its_key_and_line() {
    let chat = "[[route]]\nhosts = [\"a.example\", \"*.b.example\"]\nupstream = \"other\"\n";
    for (text, message) in [
        (
            "[[route]]\nupstream = \"other\"\ntls = \"passthrough\"",
            "route.1: has no hosts, protocol or paths, so nothing would reach the upstream of its listeners; add one of them, or set upstream in the [[listener]] (v.toml, line 18)",
        ),
        (
            "[[route]]\nhosts = [\"a.example\"]",
            "route.1.upstream: missing; name an upstream: chat or other (v.toml, line 18)",
        ),
        (
            "[[route]]\nhosts = [\"a.example\"]\nupstream = \"othr\"",
            "route.1.upstream: no upstream is named \"othr\"; did you mean other? (v.toml, line 20)",
        ),
        (
            "[[route]]\nhosts = [\"a_.example/\"]\nupstream = \"other\"",
            "route.1.hosts: \"a_.example/\" is not a domain; write a domain such as chat.example, or *.chat.example for all names one label below it (v.toml, line 19)",
        ),
        (
            "[[route]]\nhosts = [\"a.example\"]\nlisteners = [\"client\"]\nupstream = \"other\"",
            "route.1.listeners: no listener is named \"client\"; did you mean clients? (v.toml, line 20)",
        ),
        (
            "[[route]]\nhosts = [\"a.example\"]\nlisteners = [\"web\"]\nupstream = \"other\"",
            "route.1.listeners: no listener is named \"web\"; known are tls-8443 or clients (v.toml, line 20)",
        ),
        (
            "[[route]]\nprotocol = \"xmpp\"\nupstream = \"other\"",
            "route.1.protocol: \"xmpp\" is not known here; write xmpp-client, xmpp-server or http (v.toml, line 19)",
        ),
        (
            "[[route]]\nprotocol = \"xmpp-server\"\nupstream = \"other\"",
            "route.1.protocol: it holds for no listener that speaks xmpp-server; such are those with scheme xmpp-server, xmpps-server or auto (v.toml, line 19)",
        ),
        (
            "[[route]]\nprotocol = \"xmpp-client\"\nlisteners = [\"tls-8443\"]\nupstream = \"other\"",
            "route.1.protocol: it holds for no listener that speaks xmpp-client; such are those with scheme xmpp, xmpps or auto (v.toml, line 19)",
        ),
    ] {
        let told = faults(&with_clients(&format!("{text}\n")));
        assert_eq!(told, message, "{text}");
    }
    // Behind a route for a.example and *.b.example.
    let covered = "route.2: route.1 takes all that this one would; put route.2 before it, or take one of them away (v.toml, line 21)";
    for text in [
        "hosts = [\"A.example\"]",
        "hosts = [\"x.b.example\", \"a.example\"]",
        "hosts = [\"*.b.example\"]\nprotocol = \"xmpp-client\"",
        "hosts = [\"a.example\"]\nlisteners = [\"clients\"]\ntls = \"passthrough\"",
    ] {
        let text = format!("{chat}[[route]]\nupstream = \"chat\"\n{text}\n");
        assert_eq!(faults(&with_clients(&text)), covered, "{text}");
    }
    for text in [
        "hosts = [\"b.example\"]",
        "hosts = [\"x.y.b.example\"]",
        "hosts = [\"a.example\", \"c.example\"]",
        "protocol = \"xmpp-client\"",
    ] {
        let text = format!("{chat}[[route]]\nupstream = \"chat\"\n{text}\n");
        assert_eq!(resolve(&with_clients(&text)).routes.len(), 2);
    }
}

/// [`SOUND`] and two listeners for HTTP, so that the first line of what is added is the twenty-fourth.
fn with_web(text: &str) -> String {
    format!(
        "{SOUND}\
[[listener]]
name = \"web\"
listen = \"https://127.0.0.1:443\"
upstream = \"chat\"
[[listener]]
name = \"any\"
listen = \"auto://127.0.0.1:444\"
upstream = \"chat\"
[[upstream]]
name = \"app\"
backend = [{{ address = \"app:80\" }}]
[[listener]]
listen = \"http://127.0.0.1:80\"
{text}"
    )
}

#[test]
fn one_fault_about_http_is_told_with_its_key_and_line() {
    let web = "[[listener]]\nname = \"b\"\nlisten = \"https://[::]:1\"\nupstream = \"chat\"\n";
    let auto = "[[listener]]\nname = \"b\"\nlisten = \"auto://[::]:1\"\nupstream = \"chat\"\n";
    let tls = "[[listener]]\nname = \"b\"\nlisten = \"tls://[::]:1\"\nupstream = \"chat\"\n";
    let plain = "[[listener]]\nname = \"b\"\nhttps_port = 443\nlisten = \"http://[::]:1\"\n";
    let upstream = "[[listener]]\nlisten = \"tls://[::]:1\"\nupstream = \"b\"\n\
        [[upstream]]\nname = \"b\"\nbackend = [{ address = \"http://b:1\" }]\n";
    let brought = "no HTTP is brought to this upstream; name it in a listener with scheme https or in a [[route]] with protocol = \"http\", or take";
    let redirects = "a listener with scheme http only redirects to https; take";
    for (table, text, message) in [
        (
            web,
            "domains = [\"chat.example\"]",
            "listener.b.domains: a listener with scheme https knows no XMPP domains; choose another scheme, or take domains away (v.toml, line 15)".to_owned(),
        ),
        (
            web,
            "alpn = [\"h2\", \"xmpp-client\"]",
            "listener.b.alpn: a listener with scheme https does not speak \"xmpp-client\"; write h2, http/1.1 or http/1.0 (v.toml, line 15)".to_owned(),
        ),
        (
            auto,
            "alpn = [\"xmpp-client\", \"http/1.1\"]",
            "listener.b.alpn: \"http/1.1\" is HTTP, which no route is for here; add a [[route]] with protocol = \"http\", or take \"http/1.1\" away (v.toml, line 15)".to_owned(),
        ),
        (
            web,
            "https_port = 443",
            "listener.b.https_port: only a listener with scheme http sends its clients to another port; take https_port away (v.toml, line 15)".to_owned(),
        ),
        (
            tls,
            "trusted_proxies = [\"::1\"]",
            "listener.b.trusted_proxies: a listener with scheme tls knows no headers of HTTP; choose https or auto, or take trusted_proxies away (v.toml, line 15)".to_owned(),
        ),
        (
            web,
            "trusted_proxies = [\"10.0.0.1/8\"]",
            "listener.b.trusted_proxies: 10.0.0.1/8 is an address within a network; write 10.0.0.0/8 for the network, or 10.0.0.1 for the address alone (v.toml, line 15)".to_owned(),
        ),
        (
            plain,
            "upstream = \"chat\"",
            format!("listener.b.upstream: {redirects} upstream away (v.toml, line 15)"),
        ),
        (
            plain,
            "alpn = []",
            format!("listener.b.alpn: {redirects} alpn away (v.toml, line 15)"),
        ),
        (
            plain,
            "tls = \"terminate\"",
            format!("listener.b.tls: {redirects} tls away (v.toml, line 15)"),
        ),
        (
            plain,
            "domains = [\"a\"]",
            format!("listener.b.domains: {redirects} domains away (v.toml, line 15)"),
        ),
        (
            plain,
            "trusted_proxies = [\"::1\"]",
            format!("listener.b.trusted_proxies: {redirects} trusted_proxies away (v.toml, line 15)"),
        ),
        (
            "[[listener]]\nname = \"b\"\n",
            "listen = \"http://[::]:1\"",
            "listener.b.https_port: there is no https listener to send clients to; add a [[listener]] with scheme https, or write its port here (v.toml, line 11)".to_owned(),
        ),
        (
            "[[listener]]\nname = \"b\"\nlisten = \"http://[::]:1\"\n",
            "https_port = 0",
            "listener.b.https_port: port 0 cannot be reached by anybody; write a port from 1 to 65535 (v.toml, line 14)".to_owned(),
        ),
        (
            upstream,
            "http2 = true",
            format!("upstream.b.http2: {brought} http2 away (v.toml, line 17)"),
        ),
        (
            upstream,
            "sticky = \"cookie\"",
            format!("upstream.b.sticky: {brought} sticky = \"cookie\" away (v.toml, line 17)"),
        ),
        (
            upstream,
            "[[listener]]\nlisten = \"xmpp://[::]:2\"\nupstream = \"b\"",
            "listener.3.listen: its XMPP would go to http://b:1; use scheme https, or write a backend that speaks XMPP (v.toml, line 18)".to_owned(),
        ),
        (
            "[http]\n",
            "head_size = 100",
            "http.head_size: 100 is out of range; write 2KiB to 256KiB (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "headers = 5",
            "http.headers: 5 is out of range; write 16 to 1000 (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "headers = 70000",
            "http.headers: 70000 is too large; write a smaller number (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "body_size = 100",
            "http.body_size: 100 is out of range; write 1KiB to 1024GiB, or 0 (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "body_rate = \"2MiB\"",
            "http.body_rate: 2MiB is out of range; write 1 to 1MiB, or 0 (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "streams = 0",
            "http.streams: 0 is out of range; write 1 to 10000 (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "underscores = \"on\"",
            "http.underscores: a text does not belong here; write true or false (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "idle_backends = 10001",
            "http.idle_backends: 10001 is out of range; write 0 to 10000 (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "idle_backend = \"31d\"",
            "http.idle_backend: 31d is out of range; write 1ms to 30d, or 0 (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "backend_age = 60",
            "http.backend_age: \"60\" has no unit; write 60s, 60m, or 0 for never (v.toml, line 12)".to_owned(),
        ),
        (
            "[http]\n",
            "keep_alive = \"1m\"",
            "http.keep_alive: unknown key in [http]; it belongs to [timeouts] (v.toml, line 12)".to_owned(),
        ),
    ] {
        let told = faults(&format!("{SOUND}{table}{text}\n"));
        assert_eq!(told, message, "{text}");
    }
    for key in [
        "request",
        "request_body",
        "answer",
        "upgrade",
        "write",
        "keep_alive",
    ] {
        let told = faults(&format!("{SOUND}[timeouts]\n{key} = \"31d\"\n"));
        let message = "31d is out of range; write 1ms to 30d, or 0 (v.toml, line 12)";
        assert_eq!(told, format!("timeouts.{key}: {message}"));
    }
}

#[test]
fn one_fault_about_routes_of_http_is_told_with_its_key_and_line() {
    let route = |text: &str| with_web(&format!("[[route]]\nupstream = \"app\"\n{text}\n"));
    for (text, message) in [
        (
            "paths = [\"/a/\", \"/a\"]",
            "route.1.paths: \"/a\" is there twice; name each once (v.toml, line 26)",
        ),
        (
            "paths = [\"a\"]",
            "route.1.paths: \"a\" has no slash in front; write /a (v.toml, line 26)",
        ),
        (
            "protocol = \"xmpp-client\"\npaths = [\"/a\"]",
            "route.1.paths: xmpp-client has no paths; write protocol = \"http\", or take paths away (v.toml, line 27)",
        ),
        (
            "paths = [\"/a\"]\ntls = \"passthrough\"",
            "route.1.paths: nobody sees the paths of TLS that passes through; take paths away, or tls = \"passthrough\" (v.toml, line 26)",
        ),
        (
            "paths = [\"/a\"]\nlisteners = [\"tls-8443\"]",
            "route.1.paths: it holds for no listener that speaks http; such are those with scheme https or auto (v.toml, line 26)",
        ),
        (
            "protocol = \"http\"\npaths = [\"/a\"]\nlisteners = [\"tls-8443\"]",
            "route.1.protocol: it holds for no listener that speaks http; such are those with scheme https or auto (v.toml, line 26)",
        ),
        (
            "protocol = \"xmpp-client\"\nlisteners = [\"web\"]",
            "route.1.protocol: it holds for no listener that speaks xmpp-client; such are those with scheme xmpp, xmpps or auto (v.toml, line 26)",
        ),
        (
            "hosts = [\"a.example\"]\nlisteners = [\"web\", \"http-80\"]",
            "route.1.listeners: \"http-80\" only redirects to https; name the https listener, or take it away (v.toml, line 27)",
        ),
        (
            "paths = [\"/a\"]\nlisteners = [\"b\"]\n\
             [[listener]]\nname = \"b\"\nlisten = \"https://[::]:1\"\nupstream = \"app\"\ntls = \"passthrough\"",
            "route.1.paths: nobody sees the paths of TLS that passes through at its listeners; take paths away, or write tls = \"terminate\" (v.toml, line 26)",
        ),
    ] {
        let told = faults(&route(text));
        assert_eq!(told, message, "{text}");
    }
    let told = faults(&route("hosts = [\"a.example\"]").replace("\"app:80\"", "\"http://app:80\""));
    assert_eq!(
        told,
        "route.1: its XMPP would go to http://app:80; write protocol = \"http\", or name the listeners that it is for (v.toml, line 24)"
    );
    let only = "[[listener]]\nlisten = \"http://[::]:80\"\nhttps_port = 443\n\
        [[upstream]]\nname = \"a\"\nbackend = [{ address = \"a:1\" }]\n\
        [[route]]\nhosts = [\"a\"]\nupstream = \"a\"\n";
    assert_eq!(
        faults(only),
        "route.1: it holds for no listener but with scheme http, which only redirects; add a [[listener]] with another scheme, or take the route away (v.toml, line 7)"
    );
}

#[test]
fn a_route_by_path_leaves_the_others_to_the_next() {
    let both = |one: &str, other: &str| {
        with_web(&format!(
            "[[route]]\nupstream = \"app\"\n{one}\n[[route]]\nupstream = \"app\"\n{other}\n"
        ))
    };
    let covered = "route.2: route.1 takes all that this one would; put route.2 before it, or take one of them away";
    for (one, other) in [
        ("protocol = \"http\"", "paths = [\"/a\"]"),
        ("paths = [\"/a\"]", "paths = [\"/a/\"]"),
        ("paths = [\"/b\", \"/a\"]", "paths = [\"/a/c\", \"/b\"]"),
        ("paths = [\"/\"]", "protocol = \"http\""),
        (
            "paths = [\"/\"]",
            "paths = [\"/a\"]\nhosts = [\"a.example\"]",
        ),
        (
            "hosts = [\"a.example\"]\nlisteners = [\"web\"]",
            "hosts = [\"a.example\"]\nlisteners = [\"web\"]\nprotocol = \"http\"",
        ),
        (
            "hosts = [\"a.example\"]\ntls = \"passthrough\"",
            "hosts = [\"a.example\"]\npaths = [\"/a\"]",
        ),
    ] {
        let told = faults(&both(one, other));
        assert!(told.starts_with(covered), "{one} {other}: {told}");
    }
    for (one, other) in [
        ("paths = [\"/a\"]", "protocol = \"http\""),
        ("paths = [\"/a\"]", "paths = [\"/ab\"]"),
        ("paths = [\"/a\"]", "paths = [\"/a\", \"/b\"]"),
        ("paths = [\"/a/b\"]", "paths = [\"/a\"]"),
        (
            "paths = [\"/a\"]\nhosts = [\"a.example\"]",
            "paths = [\"/a\"]",
        ),
        // On auto the first leaves HTTP, the second leaves the rest.
        (
            "hosts = [\"a.example\"]",
            "hosts = [\"a.example\"]\npaths = [\"/\"]",
        ),
        ("paths = [\"/\"]", "hosts = [\"a.example\"]"),
        (
            "hosts = [\"a.example\"]",
            "hosts = [\"a.example\"]\nprotocol = \"xmpp-server\"",
        ),
        (
            "hosts = [\"a.example\"]\npaths = [\"/a\"]",
            "hosts = [\"b.example\"]\nprotocol = \"http\"\ntls = \"passthrough\"",
        ),
    ] {
        let config = resolve(&both(one, other));
        assert_eq!(config.routes.len(), 2, "{one} {other}");
        assert_eq!(resolve(&config.to_string()), config);
    }
    assert_eq!(
        faults(&both(
            "hosts = [\"a.example\"]\npaths = [\"/a\"]",
            "hosts = [\"*.example\"]\nprotocol = \"http\"\ntls = \"passthrough\""
        )),
        "route.2: TLS that passes through here hides the paths of route.1; choose other hosts or listeners, or take one of them away (v.toml, line 28)"
    );
}

#[test]
fn a_plain_listener_sends_clients_to_the_first_that_serves_http() {
    let web = "[[listener]]\nlisten = \"https://[::]:7\"\nupstream = \"chat\"\n";
    let auto = "[[listener]]\nlisten = \"auto://[::]:8\"\nupstream = \"chat\"\n";
    let route = "[[route]]\nprotocol = \"http\"\nupstream = \"chat\"\n";
    let port = |text: &str| {
        let plain = "[[listener]]\nlisten = \"http://[::]:80\"\n";
        let config = resolve(&format!("{SOUND}{plain}{text}"));
        assert_eq!(resolve(&config.to_string()), config);
        let listener = &config.listeners[1];
        assert_eq!(listener.name, "http-80");
        assert_eq!(listener.upstream, UpstreamId(0));
        assert!(listener.alpn.is_empty());
        listener.https_port
    };
    assert_eq!(port("https_port = 1234\n"), 1234);
    assert_eq!(port(&format!("https_port = 1234\n{web}")), 1234);
    assert_eq!(port(&format!("{auto}{web}{route}")), 7);
    assert_eq!(port(&format!("{auto}{route}")), 8);

    // Alone it needs nothing else.
    let config = resolve("[[listener]]\nlisten = \"http://[::]:80\"\nhttps_port = 443\n");
    assert!(config.certificates.is_empty() && config.upstreams.is_empty());
    assert_eq!(resolve(&config.to_string()), config);
    let config = flags(pair(&["http://[::]:80", "https://[::]:444=http://a:1"])).unwrap();
    assert_eq!(config.listeners[0].https_port, 444);
    assert_eq!(resolve(&config.to_string()), config);
}

#[test]
fn trusted_proxies_of_the_flag_hold_where_http_is_spoken() {
    let mut file = File::parse(&with_web("")).unwrap();
    let own = vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
    file.listeners[1].trusted_proxies = Some(Given::by_flag("", own));
    file.flags.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "::2/128".parse().unwrap()];
    file.flags.forwards = vec!["https://[::]:1=a:1".to_owned()];
    let config = file.resolve_on(MACHINE).unwrap();
    let counts: Vec<(Scheme, usize)> = config
        .listeners
        .iter()
        .map(|listener| (listener.scheme, listener.trusted_proxies.len()))
        .collect();
    assert_eq!(
        counts,
        [
            (Scheme::Tls, 0),
            (Scheme::Https, 3),
            (Scheme::Auto, 2),
            (Scheme::Http, 0),
            (Scheme::Https, 2)
        ]
    );
    assert_eq!(resolve(&config.to_string()), config);
}

#[test]
fn what_is_said_about_http_holds() {
    let none = resolve(SOUND);
    let expected = Http {
        head_size: 16 << 10,
        headers: 100,
        body_size: 0,
        body_rate: 256,
        streams: 100,
        underscores: false,
        idle_backends: 256,
        idle_backend: Duration::from_secs(4),
        backend_age: Duration::from_secs(600),
    };
    assert_eq!(none.http, expected);
    let web = with_web("").replace(
        "name = \"app\"",
        "name = \"app\"\nhttp2 = true\nsticky = \"cookie\"",
    );
    let config = resolve(&format!(
        "{web}[[route]]\npaths = [\"/\"]\nupstream = \"app\"\n\
         [http]\nhead_size = \"8KiB\"\nheaders = 64\nbody_size = \"1GiB\"\nbody_rate = 0\nstreams = 7\n\
         underscores = true\nidle_backends = 0\nidle_backend = 0\nbackend_age = 0\n\
         [timeouts]\nrequest = 0\nrequest_body = 0\nanswer = 0\nupgrade = 0\nwrite = 0\nkeep_alive = 0\n"
    ));
    let expected = Http {
        head_size: 8 << 10,
        headers: 64,
        body_size: 1 << 30,
        body_rate: 0,
        streams: 7,
        underscores: true,
        idle_backends: 0,
        idle_backend: Duration::ZERO,
        backend_age: Duration::ZERO,
    };
    assert_eq!(config.http, expected);
    let timeouts = config.timeouts;
    for timeout in [
        timeouts.request,
        timeouts.request_body,
        timeouts.answer,
        timeouts.upgrade,
        timeouts.write,
        timeouts.keep_alive,
    ] {
        assert!(timeout.is_zero());
    }
    let app = &config.upstreams[1];
    assert!(app.http2);
    assert_eq!(app.sticky, Sticky::Cookie);
    assert_eq!(config.routes[0].paths, ["/"]);
    assert_eq!(resolve(&config.to_string()), config);
}

#[test]
fn a_route_for_one_listener_leaves_the_others_to_the_next() {
    let route =
        |more: &str| format!("[[route]]\nhosts = [\"a.example\"]\nupstream = \"other\"\n{more}\n");
    let one = route("listeners = [\"clients\"]");
    let any = route("");
    let both = route("listeners = [\"tls-8443\", \"clients\"]");
    assert_eq!(
        resolve(&with_clients(&format!("{one}{any}"))).routes.len(),
        2
    );
    // Both are all that there are.
    assert!(
        faults(&with_clients(&format!("{both}{any}"))).starts_with("route.2: route.1 takes all")
    );
}

#[test]
fn routes_come_out_with_their_names_joined() {
    let config = resolve(&with_clients(
        "[[route]]\nhosts = [\"Chat.Example\"]\nprotocol = \"xmpp-client\"\nlisteners = [\"clients\"]\n\
         upstream = \"other\"\ntls = \"passthrough\"\n",
    ));
    let expected = Route {
        paths: Vec::new(),
        hosts: vec!["chat.example".to_owned()],
        protocol: Some(Protocol::XmppClient),
        listeners: vec![ListenerId(1)],
        upstream: UpstreamId(1),
        tls: Some(TlsMode::Passthrough),
    };
    assert_eq!(config.routes, [expected]);
    assert_eq!(resolve(&config.to_string()), config);
}

#[test]
fn what_a_listener_offers_follows_from_scheme_and_routes() {
    const CLIENT: &str = "xmpp-client";
    const SERVER: &str = "xmpp-server";
    let listeners: String = [
        "tls",
        "xmpp",
        "xmpps",
        "xmpp-server",
        "xmpps-server",
        "auto",
        "https",
    ]
    .iter()
    .enumerate()
    .map(|(port, scheme)| {
        format!(
            "[[listener]]\nname = \"{scheme}\"\nlisten = \"{scheme}://[::]:{}\"\nupstream = \"chat\"\n",
            port + 1
        )
    })
    .collect();
    let alpn = |routes: &str| {
        let config = resolve(&format!("{SOUND}{listeners}{routes}"));
        assert_eq!(resolve(&config.to_string()), config);
        let all = config.listeners.into_iter().skip(1);
        all.map(|listener| (listener.tls, listener.alpn))
            .collect::<Vec<_>>()
    };
    let without = alpn("");
    let expected = [
        (TlsMode::Terminate, vec![]),
        (TlsMode::Terminate, vec![]),
        (TlsMode::Terminate, vec![CLIENT.to_owned()]),
        (TlsMode::Passthrough, vec![]),
        (TlsMode::Passthrough, vec![SERVER.to_owned()]),
        (TlsMode::Terminate, vec![CLIENT.to_owned()]),
        (
            TlsMode::Terminate,
            vec![
                "h2".to_owned(),
                "http/1.1".to_owned(),
                "http/1.0".to_owned(),
            ],
        ),
    ];
    assert_eq!(without, expected);
    for (route, offered) in [
        ("protocol = \"http\"", true),
        ("paths = [\"/a\"]\nlisteners = [\"auto\"]", true),
        ("paths = [\"/a\"]\nlisteners = [\"https\"]", false),
        ("hosts = [\"a.example\"]", false),
        // Only those whose TLS ends here are offered anything.
        ("protocol = \"http\"\ntls = \"passthrough\"", false),
    ] {
        let with = alpn(&format!("[[route]]\nupstream = \"chat\"\n{route}\n"));
        let mut expected = vec![CLIENT];
        if offered {
            expected.extend(["h2", "http/1.1", "http/1.0"]);
        }
        assert_eq!(with[5].1, expected, "{route}");
    }
    for (listeners, both) in [
        ("", true),
        ("listeners = [\"auto\"]\n", true),
        ("listeners = [\"xmpp-server\"]\n", false),
    ] {
        let route = "[[route]]\nprotocol = \"xmpp-server\"\nupstream = \"chat\"\n";
        let offered = alpn(&format!("{route}{listeners}"))[5].1.len();
        assert_eq!(offered, if both { 2 } else { 1 }, "{listeners}");
    }
}

#[test]
fn only_who_terminates_needs_a_certificate() {
    let text = SOUND.replace("tls://127.0.0.1:8443", "xmpp-server://127.0.0.1:8443");
    let text = text.split("[[certificate]]").next().unwrap();
    assert!(resolve(text).certificates.is_empty());
    let none = "certificate: there is none; give --cert FILE and --key FILE, --cert-dir DIR, or a [[certificate]] in the file";
    let terminating = text.replacen("upstream", "tls = \"terminate\"\nupstream", 1);
    assert_eq!(faults(&terminating), none);
    let route = "[[route]]\nhosts = [\"a.example\"]\nupstream = \"chat\"\ntls = \"terminate\"\n";
    assert_eq!(faults(&format!("{text}{route}")), none);
    let lists = FlagLists {
        forwards: vec!["xmpps-server://0.0.0.0:5270=chat:5270".to_owned()],
        ..FlagLists::default()
    };
    assert!(flags(lists).unwrap().certificates.is_empty());
}

#[test]
fn flags_about_the_proxy_protocol_hold_everywhere() {
    let balancer: IpNet = "10.0.0.0/8".parse().unwrap();
    let with = |upstream: &str, version| {
        let text = SOUND
            .replacen("[[upstream]]", &format!("[[upstream]]\n{upstream}"), 1)
            .replacen(
                "[[listener]]",
                "[[listener]]\naccept_proxy_protocol = [\"10.0.0.0/8\", \"::1\"]",
                1,
            );
        let mut file = File::parse(&text).unwrap();
        file.flags = FlagLists {
            proxy_protocol: version,
            accept_proxy_protocol: vec![balancer],
            ..pair(&["xmpp://0.0.0.0:5222=b:1"])
        };
        let config = file.resolve_on(MACHINE).unwrap();
        assert_eq!(resolve(&config.to_string()), config);
        config
    };
    let config = with("", None);
    assert_eq!(config.listeners[0].accept_proxy_protocol.len(), 2);
    assert_eq!(config.listeners[1].accept_proxy_protocol, [balancer]);
    for upstream in config.upstreams {
        assert_eq!(upstream.proxy_protocol, ProxyProtocol::Off);
        assert!(upstream.proxy_tlvs.is_empty());
    }
    for upstream in with("", Some(ProxyProtocol::V2)).upstreams {
        assert_eq!(upstream.proxy_protocol, ProxyProtocol::V2);
        assert_eq!(upstream.proxy_tlvs, defaults::PROXY_TLVS);
    }
    // The file's fields wait for the version that has them.
    let fields = "proxy_protocol = \"v2\"\nproxy_tlvs = [\"binding\"]";
    for upstream in with(fields, Some(ProxyProtocol::V1)).upstreams {
        assert_eq!(upstream.proxy_protocol, ProxyProtocol::V1);
        assert!(upstream.proxy_tlvs.is_empty());
    }
    let upstreams = with(fields, None).upstreams;
    assert_eq!(upstreams[0].proxy_tlvs, [ProxyTlv::Binding]);
    assert_eq!(upstreams[1].proxy_protocol, ProxyProtocol::Off);
}

#[test]
fn what_is_said_about_xmpp_holds() {
    let none = resolve(SOUND);
    let expected = Xmpp {
        guard: Some(XmppGuard {
            element_size: 8 << 10,
            bytes: 64 << 10,
            elements: 32,
            depth: 8,
        }),
        element_size: 0,
        to_must_match: false,
        on_drain: OnDrain::Close,
        probe: true,
    };
    assert_eq!(none.xmpp, expected);
    let config = resolve(&format!(
        "{SOUND}[xmpp]\nguard = false\nelement_size = \"256KiB\"\nto_must_match = true\n\
         on_drain = \"see-other-host=b.example:5222\"\nprobe = false\n"
    ));
    let expected = Xmpp {
        guard: None,
        element_size: 256 << 10,
        to_must_match: true,
        on_drain: OnDrain::SeeOtherHost("b.example:5222".to_owned()),
        probe: false,
    };
    assert_eq!(config.xmpp, expected);
    assert_eq!(resolve(&config.to_string()), config);
}

#[test]
fn text_that_is_no_toml_is_told_with_its_line() {
    let told = faults("workers = \n[limits\nbacklog = 5\n");
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() >= 2, "{told}");
    assert!(lines[0].starts_with("v.toml, line "), "{told}");
    assert!(
        lines[0].ends_with("; write KEY = VALUE, where a text stands in quotes: name = \"chat\""),
        "{told}"
    );
    assert!(lines[1].starts_with("v.toml, line 2: "), "{told}");
}

#[test]
fn all_faults_are_told_at_once_and_none_that_only_follow() {
    let told = faults(
        "\
workerz = 3
[[listener]]
listn = \"tls://127.0.0.1:8443\"
upstream = \"chat\"
[[upstrem]]
name = \"chat\"
[limits]
backlog = \"many\"
[timeouts]
stall = 0
[buffers]
buffer_size = 1
",
    );
    assert_eq!(
        told,
        "\
workerz: unknown key at the top of the file; did you mean workers? (v.toml, line 1)
listener.1.listn: unknown key in [listener]; did you mean listen? (v.toml, line 3)
upstrem: unknown key at the top of the file; did you mean upstream? (v.toml, line 5)
limits.backlog: \"many\" is not a whole number; write digits, such as 1000 (v.toml, line 8)
buffers.buffer_size: 1 is out of range; write 1KiB to 1MiB (v.toml, line 12)
timeouts.stall: 0 is out of range; write 100ms to 1h (v.toml, line 10)"
    );
}

#[test]
fn nothing_said_is_told_with_the_way_in() {
    let error = File::default().resolve_on(MACHINE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\
listener: there is nothing to serve; give --forward LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222, or a [[listener]] in the file
certificate: there is none; give --cert FILE and --key FILE, --cert-dir DIR, or a [[certificate]] in the file"
    );
}

#[test]
fn an_unreadable_file_is_a_fault() {
    let error = File::open(Path::new("/nonexistent.toml")).resolve_on(MACHINE);
    assert_eq!(
        error.unwrap_err().to_string(),
        "--config: cannot read /nonexistent.toml: No such file or directory (os error 2); name a TOML file that this user may read"
    );
}

#[test]
fn bad_forwards_are_told_with_the_flag() {
    for (forwards, message) in [
        (
            &["xmpps://0.0.0.0:5223=chat"] as &[&str],
            "--forward xmpps://0.0.0.0:5223=chat: \"chat\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
        ),
        (
            &["chat:5222"],
            "--forward chat:5222: there is no =BACKEND; write LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222",
        ),
        (
            &["http://0.0.0.0:80=chat:80"],
            "--forward http://0.0.0.0:80=chat:80: a listener with scheme http only redirects to https; write http://0.0.0.0:80 without =BACKEND, or https:// for what the backend serves",
        ),
        (
            &["https://0.0.0.0:443"],
            "--forward https://0.0.0.0:443: there is no =BACKEND; write LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222",
        ),
        (
            &["http://0.0.0.0:80", "auto://0.0.0.0:443=a:1"],
            "--forward http://0.0.0.0:80: there is no https listener to send clients to; add --forward https://ADDR:PORT=BACKEND",
        ),
        (
            &[
                "http://0.0.0.0:80",
                "https://0.0.0.0:443=a:1",
                "http://0.0.0.0:80",
            ],
            "--forward http://0.0.0.0:80: it is there twice; give it once",
        ),
        (
            &["auto://0.0.0.0:443=a:1", "auto://0.0.0.0:443=http://b:1"],
            "--forward auto://0.0.0.0:443=a:1: its XMPP would go to http://b:1; bring HTTP there by a [[route]] with protocol = \"http\"",
        ),
        (
            &["xmpps://0.0.0.0:5223=https://b:1"],
            "--forward xmpps://0.0.0.0:5223=https://b:1: its XMPP would go to https://b:1; use scheme https, or write a backend that speaks XMPP",
        ),
        (
            &["tls://0.0.0.0:1=a:1", "tls://0.0.0.0:1=a:1"],
            "--forward tls://0.0.0.0:1=a:1: a:1 is there twice; name each backend once",
        ),
        (
            &["tls://0.0.0.0:1=a:1", "xmpps://0.0.0.0:1=b:1"],
            "--forward xmpps://0.0.0.0:1=b:1: 0.0.0.0:1 is served by listener \"tls-1\" too; give each listener an address of its own",
        ),
        (
            &["tls://127.0.0.1:1=a:1", "tls://0.0.0.0:1=b:1"],
            "--forward tls://0.0.0.0:1=b:1: 0.0.0.0:1 overlaps with 127.0.0.1:1 of listener \"tls-127.0.0.1-1\"; give each listener a port of its own, or each an address of this machine",
        ),
        (
            &[
                "tls://[::]:1=a:1",
                "tls://0.0.0.0:1=a:1",
                "tls://[::1]:1=b:1",
            ],
            "--forward tls://[::1]:1=b:1: [::1]:1 overlaps with [::]:1 of listener \"tls-::-1\"; give each listener a port of its own, or each an address of this machine",
        ),
    ] {
        let error = flags(pair(forwards)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn unpaired_certificates_are_told() {
    let mut lists = pair(&["tls://0.0.0.0:1=a:1"]);
    lists.certs.push("b.pem".into());
    assert_eq!(
        flags(lists.clone()).unwrap_err().to_string(),
        "--cert b.pem: has no --key; give one --key for each --cert, in the same order"
    );
    lists.certs.clear();
    assert_eq!(
        flags(lists).unwrap_err().to_string(),
        "--key a.key: has no --cert; give one --key for each --cert, in the same order"
    );
}

#[test]
fn forwards_with_one_listen_balance() {
    let config = flags(pair(&[
        "xmpps://0.0.0.0:5223=a:5222",
        "tls://0.0.0.0:8443=c:1",
        "xmpps://0.0.0.0:5223=tls://b:5222",
    ]))
    .unwrap();
    let names: Vec<_> = config.listeners.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["xmpps-5223", "tls-8443"]);
    assert_eq!(config.listeners[0].alpn, ["xmpp-client"]);
    assert!(config.listeners[1].alpn.is_empty());
    let upstream = &config.upstreams[usize::from(config.listeners[0].upstream.0)];
    assert_eq!(upstream.name, "xmpps-5223");
    let backends: Vec<_> = upstream.backends.iter().map(ToString::to_string).collect();
    assert_eq!(backends, ["a:5222", "tls://b:5222"]);
}

#[test]
fn names_that_clash_take_the_address_in() {
    let config = flags(pair(&[
        "tls://127.0.0.1:8443=a:1",
        "tls://[::1]:8443=a:1",
        "tls://127.0.0.1:9443=a:1",
    ]))
    .unwrap();
    let names: Vec<_> = config.listeners.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["tls-127.0.0.1-8443", "tls-::1-8443", "tls-9443"]);
}

#[test]
fn forwards_add_to_the_listeners_of_the_file() {
    let mut file = File::parse(SOUND).unwrap();
    file.flags = pair(&["xmpps://0.0.0.0:5223=b:1"]);
    file.flags.backend_ca = vec!["ca.pem".into()];
    let config = file.resolve_on(MACHINE).unwrap();
    let names: Vec<_> = config.listeners.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["tls-8443", "xmpps-5223"]);
    assert_eq!(config.certificates.len(), 2);
    assert!(
        config
            .upstreams
            .iter()
            .all(|u| u.ca == [PathBuf::from("ca.pem")])
    );

    let mut file = File::parse(SOUND).unwrap();
    file.flags = pair(&["tls://127.0.0.1:8443=b:1"]);
    assert_eq!(
        file.resolve_on(MACHINE).unwrap_err().to_string(),
        "\
--forward tls://127.0.0.1:8443=b:1: 127.0.0.1:8443 is served by listener \"tls-8443\" too; give each listener an address of its own"
    );
}

#[test]
fn a_listener_may_have_sockets_of_its_own() {
    let text = SOUND.replace(
        "upstream = \"chat\"",
        "upstream = \"chat\"\nfront_recv_buffer = \"8KiB\"\nkeepalive = 0",
    );
    let config = resolve(&format!(
        "{text}[sockets]\nfront_recv_buffer = \"4KiB\"\nfront_send_buffer = \"6KiB\"\n"
    ));
    let listener = &config.listeners[0];
    assert_eq!(listener.front.recv_buffer, SocketBuffer::Bytes(8 << 10));
    assert_eq!(listener.front.send_buffer, SocketBuffer::Bytes(6 << 10));
    assert_eq!(listener.back.recv_buffer, SocketBuffer::Auto);
    assert_eq!(listener.front.keepalive, Duration::ZERO);
    assert_eq!(listener.back.keepalive, Duration::ZERO);
}

#[test]
fn zero_is_never_or_no_limit() {
    let config = resolve(&format!(
        "{SOUND}[timeouts]\nfirst_byte = 0\nstarttls = 0\nauthentication = 0\nhandshake = 0\nconnect = \"0\"\nidle = 0\nhalf_closed = 0\ndrain = 0\n\
         [sockets]\nuser_timeout = 0\n[limits]\nmax_connections_per_ip = 0\n"
    ));
    let timeouts = config.timeouts;
    for timeout in [
        timeouts.first_byte,
        timeouts.starttls,
        timeouts.authentication,
        timeouts.handshake,
        timeouts.connect,
        timeouts.half_closed,
        timeouts.drain,
    ] {
        assert!(timeout.is_zero());
    }
    assert_eq!(config.limits.max_connections_per_ip, None);
}

#[test]
fn the_pool_follows_the_memory_and_the_workers() {
    const MIB: u64 = 1 << 20;
    for (cpus, memory, buffer_size, pool_size) in [
        (1, 16 * MIB, "64KiB", 8 * MIB),
        (2, 512 * MIB, "64KiB", 64 * MIB),
        (2, 64 << 30, "64KiB", 1 << 30),
        (2, u64::MAX, "64KiB", 1 << 30),
        (64, 16 * MIB, "64KiB", 20 * MIB),
        (8, 16 * MIB, "1MiB", 16 * MIB),
    ] {
        let text = format!("{SOUND}[buffers]\nbuffer_size = \"{buffer_size}\"\n");
        let machine = Machine { cpus, memory };
        let config = File::parse(&text).unwrap().resolve_on(machine).unwrap();
        assert_eq!(config.workers, cpus);
        assert_eq!(config.buffers.pool_size as u64, pool_size);
    }
}

#[test]
fn a_folder_of_certificates_is_read_by_name() {
    let dir = std::env::temp_dir().join(format!("vestibule-certs-{}", std::process::id()));
    for name in ["b.example", "a.example", "..data"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in [
        "a.example/fullchain.pem",
        "a.example/privkey.pem",
        "b.example/fullchain.pem",
        "README",
    ] {
        fs::write(dir.join(name), "").unwrap();
    }
    let text = format!("{SOUND}[tls]\ncert_dir = {:?}\n", dir.display().to_string());
    let told = faults(&text);
    fs::write(dir.join("b.example/privkey.pem"), "").unwrap();
    let config = resolve(&text);
    fs::remove_dir_all(&dir).unwrap();

    assert_eq!(
        told,
        format!(
            "tls.cert_dir: there is no file {}/b.example/privkey.pem; put fullchain.pem and privkey.pem into each folder (v.toml, line 12)",
            dir.display()
        )
    );
    let certs: Vec<_> = config
        .certificates
        .iter()
        .map(|pair| pair.cert.clone())
        .collect();
    assert_eq!(
        certs,
        [
            PathBuf::from("a.pem"),
            dir.join("a.example/fullchain.pem"),
            dir.join("b.example/fullchain.pem")
        ]
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in r#"([a-z_.\[\]="0-9 ]|\n|\[\[|]]|listener|listen = "tls://|\PC){0,60}"#) {
        if let Ok(file) = File::parse(&text) {
            let _ = file.resolve_on(MACHINE);
        }
    }
}
