//! The settings files that are handed out, and the command line beside them.
//!
//! Every file under `config/` must resolve; `example.toml` must name every key there is and state
//! the true defaults; every flag must have its environment twin and its place in the help.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use vestibule::cli::{Cli, Command};
use vestibule::config::file::File;
use vestibule::config::{Config, Machine};

/// The machine that defaults are computed for here, so that results are the same everywhere.
const MACHINE: Machine = Machine {
    cpus: 2,
    memory: 1 << 30,
};

/// Keys that have no default, where something must be said or nothing is, or none that can be stated beside the others.
const NO_DEFAULT: [&str; 16] = [
    "certificate.cert",
    "certificate.key",
    // Only with another scheme.
    "listener.https_port",
    "listener.listen",
    "listener.name",
    "listener.upstream",
    "route.hosts",
    "route.listeners",
    "route.paths",
    "route.protocol",
    "route.tls",
    "route.upstream",
    "tls.cert_dir",
    // Only beside another value of upstream.proxy_protocol.
    "upstream.proxy_tlvs",
    "upstream.backend.address",
    "upstream.name",
];

fn config_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

/// Vestibule's own settings files in `config/`; the folders beside them hold those of chat servers.
fn files() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(config_dir()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
}

fn example() -> String {
    fs::read_to_string(config_dir().join("example.toml")).unwrap()
}

fn resolve(text: &str) -> Config {
    match File::parse(text).and_then(|file| file.resolve_on(MACHINE)) {
        Ok(config) => config,
        Err(error) => panic!("{error}"),
    }
}

/// A line `key = ...` of a TOML text, in the table that it stands in; also where it is commented
/// out.
fn key_of<'a>(line: &'a str, table: &str) -> Option<(String, &'a str)> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (key, value) = line.split_once(" = ")?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if !key.bytes().all(plain) {
        return None;
    }
    let key = if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
    };
    Some((key, value))
}

/// Every line of the example with the key that it gives, if it gives one.
fn lines_with_keys(text: &str) -> Vec<(&str, Option<String>)> {
    let mut table = String::new();
    text.lines()
        .map(|line| {
            if line.starts_with('[') {
                table = line.trim_matches(['[', ']']).to_owned();
            }
            (line, key_of(line, &table).map(|(key, _)| key))
        })
        .collect()
}

#[test]
fn every_file_in_config_resolves() {
    let mut count = 0;
    for path in files() {
        if let Err(error) = File::open(&path).resolve_on(MACHINE) {
            panic!("{}:\n{error}", path.display());
        }
        count += 1;
    }
    assert!(count >= 3, "config/ has {count} files");
}

#[test]
fn the_example_names_every_key() {
    let text = example();
    let named: BTreeSet<String> = lines_with_keys(&text)
        .into_iter()
        .filter_map(|(_, key)| key)
        .collect();
    let tables = [
        "admin",
        "buffers",
        "certificate",
        "http",
        "limits",
        "listener",
        "log",
        "route",
        "sockets",
        "timeouts",
        "tls",
        "upstream",
        "upstream.backend",
        "xmpp",
    ];
    let known: BTreeSet<String> = File::keys()
        .into_iter()
        .filter(|key| !tables.contains(&key.as_str()))
        .collect();
    let missing: Vec<_> = known.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(missing.is_empty(), "the example lacks {missing:?}");
    assert!(unknown.is_empty(), "the example invents {unknown:?}");
}

#[test]
fn the_example_states_the_true_defaults() {
    let text = example();
    let mut bare = String::new();
    for (line, key) in lines_with_keys(&text) {
        match key {
            Some(key) if !NO_DEFAULT.contains(&key.as_str()) => {
                assert!(!line.starts_with('#'), "{key} has a default, so state it");
            }
            _ => {
                bare.push_str(line);
                bare.push('\n');
            }
        }
    }
    assert!(!bare.contains("timeout ="), "the defaults are still there");
    assert_eq!(resolve(&text), resolve(&bare));
}

#[test]
fn every_line_of_the_example_can_be_changed() {
    // Guards the test above: a value that is ignored would equal its default too.
    let text = example();
    let changed = text
        .replace("workers = \"auto\"", "workers = 1")
        .replace("\"auto\"", "\"1MiB\"")
        .replace("max_connections = \"1MiB\"", "max_connections = 7")
        .replace("pool_size = \"1MiB\"", "pool_size = \"20MiB\"")
        .replace("= 0", "= 3")
        .replace("1024", "55")
        .replace("element_size = \"0\"", "element_size = \"10KiB\"")
        .replace("\"8KiB\"", "\"4KiB\"")
        .replace("\"16KiB\"", "\"4KiB\"")
        .replace("body_size = \"0\"", "body_size = \"1MiB\"")
        .replace("\"256\"", "\"1KiB\"")
        .replace("= 100\n", "= 99\n")
        .replace("= 256\n", "= 257\n")
        .replace("sticky = \"off\"", "sticky = \"address\"")
        .replace("= 32\n", "= 33\n")
        .replace("= 8\n", "= 9\n")
        .replace("\"strip\"", "\"keep\"")
        .replace("\"close\"", "\"system-shutdown\"")
        .replace("domains = []", "domains = [\"x\"]")
        .replace(
            "accept_proxy_protocol = []",
            "accept_proxy_protocol = [\"::1\"]",
        )
        // Not v2, which has one line more.
        .replace("proxy_protocol = \"off\"", "proxy_protocol = \"v1\"")
        .replace("\"fin\"", "\"abort\"")
        .replace("= \"off\"", "= \"unix:x\"")
        .replace("\"1.2\"", "\"1.3\"")
        .replace("= false", "= true")
        .replace("http2 = true", "http2 = false")
        .replace("pool = true", "pool = false")
        .replace("probe = true", "probe = false")
        .replace("\"64KiB\"", "\"32KiB\"")
        .replace("\"128KiB\"", "\"96KiB\"")
        .replace("level = \"info\"", "level = \"warn\"")
        .replace("\"text\"", "\"json\"")
        .replace("[\"xmpp-client\"]", "[]")
        .replace("ca = []", "ca = [\"x\"]");
    let changed = [
        "75s", "100s", "10s", "5s", "\"0\"", "2m", "30s", "150s", "1m", "4s", "10m",
    ]
    .iter()
    .fold(changed, |text, value| {
        text.replace(&format!("= \"{}\"", value.trim_matches('"')), "= \"9s\"")
    });
    let (before, after) = (resolve(&text).to_string(), resolve(&changed).to_string());
    let same: Vec<&str> = before
        .lines()
        .zip(after.lines())
        .filter(|(a, b)| a == b && a.contains('='))
        .map(|(a, _)| a)
        .collect();
    assert_eq!(
        same,
        [
            "name = \"clients\"",
            "listen = \"xmpps://0.0.0.0:5223\"",
            "upstream = \"chat\"",
            // Forbids alpn when changed.
            "tls = \"terminate\"",
            "name = \"chat\"",
            // Not where only XMPP goes.
            "http2 = false",
            "address = \"127.0.0.1:5222\"",
            "hosts = [\"team.chat.test\"]",
            "paths = []",
            "listeners = []",
            "upstream = \"chat\"",
            "cert = \"certs/chat.test.cert.pem\"",
            "key = \"certs/chat.test.key.pem\"",
            // Forbids the other keys of the guard when changed.
            "guard = true",
        ]
    );
}

#[test]
fn effective_settings_resolve_to_themselves() {
    for path in files() {
        let text = fs::read_to_string(path).unwrap();
        let config = resolve(&text);
        assert_eq!(resolve(&config.to_string()), config);
    }
}

#[test]
fn effective_settings_of_flags_resolve_to_themselves() {
    let cli = Cli::try_parse_from([
        "vestibule",
        "check",
        "--forward=xmpps://0.0.0.0:5223=chat-1:5222,xmpps://0.0.0.0:5223=tls://[::1]:5223",
        "--forward=tls://[::1]:8443=unix:/run/a \"quoted\" \\ back\tslash.sock",
        "--forward=tls://127.0.0.1:8443=b:1",
        "--forward=http://[::1]:80,https://[::1]:444=http://web:80,http://127.0.0.1:80",
        "--trusted-proxies=10.0.0.0/8,::1",
        "--cert=ä.pem",
        "--key=\u{7f}.key",
        "--backend-ca=one.pem,two.pem",
        "--workers=3",
        "--no-buffer-pool",
        "--buffer-pool-size=33333333",
        "--buffer-size=2KiB",
        "--front-recv-buffer=4KiB",
        "--back-send-buffer=5000",
        "--handshake-timeout=1h 2m 3s 4ms",
        "--idle-timeout=7m",
        "--max-connections=77",
        "--max-connections-per-ip=7",
        "--tls-min=1.3",
        "--on-truncation=abort",
        "--proxy-protocol=v2",
        "--accept-proxy-protocol=10.0.0.0/8,::1",
        "--accept-proxy-protocol=192.0.2.1",
        "--admin=unix:/run/admin.sock",
        "--log-level=info,vestibule::relay=debug",
        "--log-format=json",
        "--access-log=-",
        "--sni-strict",
    ])
    .unwrap();
    let Command::Check(settings) = cli.into_command() else {
        panic!("not check");
    };
    let config = settings.load().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(resolve(&config.to_string()), config);
    // Nothing that was said got lost on the way.
    let text = config.to_string();
    for said in [
        "workers = 3",
        "name = \"tls-::1-8443\"",
        "name = \"tls-127.0.0.1-8443\"",
        "address = \"tls://[::1]:5223\"",
        "ca = [\"one.pem\", \"two.pem\"]",
        "front_recv_buffer = \"4KiB\"",
        "back_send_buffer = \"5000\"",
        "on_truncation = \"abort\"",
        "proxy_protocol = \"v2\"",
        "proxy_tlvs = [\"alpn\", \"authority\", \"unique_id\", \"ssl\"]",
        "accept_proxy_protocol = [\"10.0.0.0/8\", \"::1/128\", \"192.0.2.1/32\"]",
        "trusted_proxies = [\"10.0.0.0/8\", \"::1/128\"]",
        "listen = \"http://127.0.0.1:80\"\nhttps_port = 444",
        "address = \"http://web:80\"",
        "min = \"1.3\"",
        "sni_strict = true",
        "pool = false",
        "pool_size = \"33333333\"",
        "buffer_size = \"2KiB\"",
        "max_connections = \"77\"",
        "max_connections_per_ip = 7",
        "handshake = \"1h 2m 3s 4ms\"",
        "idle = \"7m\"",
        "address = \"unix:/run/admin.sock\"",
        "level = \"info,vestibule::relay=debug\"",
        "format = \"json\"",
        "access = \"-\"",
    ] {
        assert!(text.contains(said), "{said} is missing in\n{text}");
    }
}

/// The flags, in the order in which the help shows them.
const FLAGS: [&str; 32] = [
    "config",
    "forward",
    "backend-ca",
    "proxy-protocol",
    "accept-proxy-protocol",
    "trusted-proxies",
    "on-truncation",
    "cert",
    "key",
    "cert-dir",
    "sni-strict",
    "tls-min",
    "no-buffer-pool",
    "buffer-pool-size",
    "buffer-size",
    "front-recv-buffer",
    "front-send-buffer",
    "back-recv-buffer",
    "back-send-buffer",
    "handshake-timeout",
    "connect-timeout",
    "idle-timeout",
    "drain-timeout",
    "max-connections",
    "max-connections-per-ip",
    "workers",
    "admin",
    "log-level",
    "log-format",
    "access-log",
    "help",
    "version",
];

#[test]
fn every_flag_has_its_twin_and_a_line_in_the_help() {
    let mut top = Cli::command();
    top.build();
    for command in [
        &top,
        top.find_subcommand("run").unwrap(),
        top.find_subcommand("check").unwrap(),
    ] {
        let mut flags = Vec::new();
        for arg in command.get_arguments() {
            let flag = arg.get_long().unwrap();
            flags.push(flag);
            if matches!(flag, "help" | "version") {
                continue;
            }
            let twin = format!("VESTIBULE_{}", flag.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().unwrap(), twin.as_str());
            assert!(arg.get_help().is_some(), "{flag} lacks help");
            assert!(arg.get_help_heading().is_some(), "{flag} lacks a heading");
        }
        let version = command.get_name() == "vestibule";
        let expected: Vec<&str> = FLAGS
            .into_iter()
            .filter(|flag| version || *flag != "version")
            .collect();
        assert_eq!(flags, expected);
    }
    let help = top.render_long_help().to_string();
    let places: Vec<usize> = FLAGS[..30]
        .iter()
        .map(|flag| help.find(&format!("      --{flag}")).unwrap())
        .collect();
    assert!(places.is_sorted(), "the help is out of order");
    assert!(help.lines().all(|line| line.len() <= 100));
}

#[test]
fn wrong_usage_is_told_by_clap_and_exits_2() {
    for (args, message) in [
        (
            vec!["--buffer-size=lots"],
            "error: invalid value 'lots' for '--buffer-size <SIZE>': \"lots\" is not a size; write bytes (65536) or a number with a unit (64KiB, 16MiB)",
        ),
        (
            vec!["--idle-timeout=10"],
            "error: invalid value '10' for '--idle-timeout <DURATION>': \"10\" has no unit; write 10s, 10m, or 0 for never",
        ),
        (
            vec!["--workers=many"],
            "error: invalid value 'many' for '--workers <N|auto>': \"many\" is not a whole number; write digits, such as 1000, or auto",
        ),
        (
            vec!["--tls-min=1.1"],
            "error: invalid value '1.1' for '--tls-min <1.2|1.3>': TLS 1.1 is broken and not served; write 1.2 or 1.3",
        ),
        (
            vec!["--proxy-protocol=v3"],
            "error: invalid value 'v3' for '--proxy-protocol <off|v1|v2>': \"v3\" is not known here; write off, v1 or v2",
        ),
        (
            vec!["--accept-proxy-protocol=::1,10.1.0.0/8"],
            "error: invalid value '10.1.0.0/8' for '--accept-proxy-protocol <CIDR>': 10.1.0.0/8 is an address within a network; write 10.0.0.0/8 for the network, or 10.1.0.0 for the address alone",
        ),
        (
            vec!["--trusted-proxies=lan"],
            "error: invalid value 'lan' for '--trusted-proxies <CIDR>': \"lan\" is not a network; write an address such as 192.0.2.1, or ADDR/BITS such as 10.0.0.0/8",
        ),
        (
            vec!["--trusted-proxy=::1"],
            "error: unexpected argument '--trusted-proxy' found",
        ),
        (
            vec!["--config=x", "check"],
            "error: the subcommand 'check' cannot be used with '--config <FILE>'",
        ),
        (vec!["serve"], "error: unrecognized subcommand 'serve'"),
    ] {
        let error = Cli::try_parse_from(std::iter::once("vestibule").chain(args)).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(error.to_string().lines().next(), Some(message));
    }
}

/// Set for the process in which [`settings_as_the_environment_has_them`] does its work.
const CHILD_FILE: &str = "CONFIGS_TEST_FILE";

/// Not a test by itself: prints what a process with the given environment and flags would serve
/// with.
#[test]
fn settings_as_the_environment_has_them() {
    let Ok(file) = std::env::var(CHILD_FILE) else {
        return;
    };
    let flags = std::env::var("CONFIGS_TEST_FLAGS").unwrap();
    let args = ["vestibule", "run", "--config", file.as_str()];
    let args = args.into_iter().chain(flags.split_whitespace());
    let Command::Run(settings) = Cli::try_parse_from(args).unwrap().into_command() else {
        panic!("not run");
    };
    println!("{}", settings.load().unwrap());
}

/// The effective settings of `file` in a process of its own, since an environment belongs to a
/// whole process.
fn effective(file: &Path, environment: &[(&str, &str)], flags: &str) -> String {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "settings_as_the_environment_has_them",
            "--nocapture",
        ])
        .env_clear()
        .env(CHILD_FILE, file)
        .env("CONFIGS_TEST_FLAGS", flags)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let (stdout, stderr) = (child.stdout, String::from_utf8(child.stderr).unwrap());
    assert!(child.status.success(), "{stderr}");
    String::from_utf8(stdout).unwrap()
}

#[test]
fn a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default() {
    let path = std::env::temp_dir().join(format!("vestibule-wins-{}.toml", std::process::id()));
    let text = fs::read_to_string(config_dir().join("minimal.toml")).unwrap();
    let text = text.replace(
        "upstream = \"chat\"",
        "upstream = \"chat\"\nback_recv_buffer = \"4KiB\"\non_truncation = \"abort\"",
    );
    let ours =
        "[tls]\nsni_strict = true\n[timeouts]\nidle = \"1m\"\n[admin]\naddress = \"unix:a\"\n";
    fs::write(&path, text + ours).unwrap();

    let by_file = effective(&path, &[], "");
    let by_environment = [
        ("VESTIBULE_SNI_STRICT", "false"),
        ("VESTIBULE_IDLE_TIMEOUT", "2m"),
        ("VESTIBULE_BACK_RECV_BUFFER", "5KiB"),
        ("VESTIBULE_ON_TRUNCATION", "fin"),
        ("VESTIBULE_ADMIN", "unix:b"),
        (
            "VESTIBULE_FORWARD",
            "tls://[::]:1=a:1,tls://[::]:1=b:1,https://[::]:2=c:1,http://[::]:3",
        ),
        ("VESTIBULE_TRUSTED_PROXIES", "10.1.0.0/16,::2"),
        ("VESTIBULE_NO_BUFFER_POOL", "1"),
        ("VESTIBULE_PROXY_PROTOCOL", "v1"),
        ("VESTIBULE_ACCEPT_PROXY_PROTOCOL", "10.0.0.0/8,::1"),
    ];
    let by_both = effective(
        &path,
        &by_environment,
        "--proxy-protocol=off --sni-strict --idle-timeout=3m --back-recv-buffer=6KiB --on-truncation=abort --admin=off",
    );
    let by_environment = effective(&path, &by_environment, "");
    fs::remove_file(&path).unwrap();

    for (settings, said) in [
        (&by_file, "sni_strict = true"),
        (&by_file, "idle = \"1m\""),
        (&by_file, "back_recv_buffer = \"4KiB\""),
        (&by_file, "on_truncation = \"abort\""),
        (&by_file, "address = \"unix:a\""),
        (&by_file, "drain = \"30s\""),
        (&by_file, "pool = true"),
        (&by_environment, "sni_strict = false"),
        (&by_environment, "idle = \"2m\""),
        (&by_environment, "back_recv_buffer = \"5KiB\""),
        (&by_environment, "on_truncation = \"fin\""),
        (&by_environment, "address = \"unix:b\""),
        (&by_environment, "address = \"a:1\""),
        (&by_environment, "address = \"b:1\""),
        (&by_environment, "listen = \"xmpps://0.0.0.0:5223\""),
        (&by_environment, "pool = false"),
        (&by_environment, "proxy_protocol = \"v1\""),
        (
            &by_environment,
            "trusted_proxies = [\"10.1.0.0/16\", \"::2/128\"]",
        ),
        (&by_environment, "https_port = 2"),
        (
            &by_environment,
            "accept_proxy_protocol = [\"10.0.0.0/8\", \"::1/128\"]",
        ),
        (&by_both, "proxy_protocol = \"off\""),
        (&by_both, "sni_strict = true"),
        (&by_both, "idle = \"3m\""),
        (&by_both, "back_recv_buffer = \"6KiB\""),
        (&by_both, "on_truncation = \"abort\""),
        (&by_both, "[admin]\naddress = \"off\""),
        (&by_both, "pool = false"),
    ] {
        assert!(settings.contains(said), "{said} is missing in\n{settings}");
    }
}

#[test]
fn faults_of_flags_are_told_with_those_of_the_file_and_once() {
    let path = std::env::temp_dir().join(format!("vestibule-told-{}.toml", std::process::id()));
    fs::write(
        &path,
        "[limits]\nbacklogg = 1\n[[listener]]\nupstream = \"x\"\n",
    )
    .unwrap();
    let cli = Cli::try_parse_from([
        "vestibule",
        "--config",
        path.to_str().unwrap(),
        "--admin=0.0.0.0:9090",
        "--front-recv-buffer=1",
        "--buffer-size=1",
        "--forward=tls://0.0.0.0:1=chat",
    ]);
    let Command::Run(settings) = cli.unwrap().into_command() else {
        panic!("not run");
    };
    let error = settings.load().unwrap_err().to_string();
    fs::remove_file(&path).unwrap();
    assert_eq!(
        error.replace(path.to_str().unwrap(), "v.toml"),
        "\
limits.backlogg: unknown key in [limits]; did you mean backlog? (v.toml, line 2)
--admin: 0.0.0.0:9090 is not loopback, and the admin listener asks for no password; use 127.0.0.1:9090, [::1]:9090 or unix:PATH
--front-recv-buffer: 1 is out of range; write 2KiB to 1GiB
--forward tls://0.0.0.0:1=chat: \"chat\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH
--buffer-size: 1 is out of range; write 1KiB to 1MiB"
    );
}

#[test]
fn healthcheck_finds_the_admin_listener() {
    let target = |args: &[&str]| {
        let args = ["vestibule", "healthcheck"].iter().chain(args);
        let Command::Healthcheck(healthcheck) = Cli::try_parse_from(args).unwrap().into_command()
        else {
            panic!("not healthcheck");
        };
        healthcheck
            .target()
            .map(|admin| admin.to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(
        target(&["--admin", "127.0.0.1:9090"]),
        Ok("127.0.0.1:9090".to_owned())
    );
    let unknown =
        "--admin: no admin listener is known; give --admin ADDR as the running instance has it";
    assert_eq!(target(&[]), Err(unknown.to_owned()));
    assert_eq!(target(&["--admin", "off"]), Err(unknown.to_owned()));

    let path = std::env::temp_dir().join(format!("vestibule-admin-{}.toml", std::process::id()));
    fs::write(&path, "[admin]\naddress = \"unix:/run/a\"\n").unwrap();
    let found = target(&["--config", path.to_str().unwrap()]);
    fs::remove_file(&path).unwrap();
    assert_eq!(found, Ok("unix:/run/a".to_owned()));
}

/// What the program itself prints to standard output and to standard error, and its exit code.
fn program(args: &[&str], environment: &[(&str, &str)]) -> (String, String, Option<i32>) {
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(args)
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(child.stdout), text(child.stderr), child.status.code())
}

#[test]
fn help_is_tidy() {
    for args in [
        ["run", "-h"],
        ["run", "--help"],
        ["check", "-h"],
        ["check", "--help"],
    ] {
        let (help, _, code) = program(&args, &[]);
        assert_eq!(code, Some(0));
        assert!(help.contains("\nSIZE is bytes, "), "{args:?}");
        for line in help.lines() {
            assert_eq!(line.trim_end(), line, "{args:?} has trailing blanks");
            assert!(line.len() <= 100, "{line}");
            let wrapped = line.contains("[default:") && !line.contains(']');
            assert!(!wrapped, "{args:?} wraps a default: {line}");
        }
    }
}

const FORWARD: &str = "--forward=tls://127.0.0.1:15223=127.0.0.1:9";
const PAIR: [&str; 2] = ["--cert=certs/ecdsa.cert.pem", "--key=certs/ecdsa.key.pem"];

#[test]
fn check_tells_every_fault_with_what_was_written() {
    let absent = "cannot be read: No such file or directory; name a PEM file that exists here";
    for (args, environment, message) in [
        (
            vec!["--workers=0", "--cert=no.pem", "--key=no.key", "--access-log=/nowhere/x"],
            vec![],
            format!(
                "vestibule: --workers: 0 is out of range; write 1 to 1024\n\
                 vestibule: --access-log /nowhere/x: cannot be opened: No such file or directory; name a file in a folder that this process may write to, or - for standard output\n\
                 vestibule: --cert no.pem: {absent}\n\
                 vestibule: --key no.key: {absent}\n"
            ),
        ),
        (
            vec!["--cert=certs/ecdsa.key.pem", "--key=certs/ecdsa.cert.pem"],
            vec![],
            "vestibule: --cert certs/ecdsa.key.pem: is a private key; --cert and --key seem to be swapped\n\
             vestibule: --key certs/ecdsa.cert.pem: is a certificate; --cert and --key seem to be swapped\n"
                .to_owned(),
        ),
        (
            vec![PAIR[0]],
            vec![],
            "vestibule: --cert certs/ecdsa.cert.pem: has no --key; give one --key for each --cert, in the same order\n".to_owned(),
        ),
        (
            PAIR.to_vec(),
            vec![("VESTIBULE_WORKERS", "0"), ("VESTIBULE_WORKER", "1"), ("VESTIBULE_PORT", "x")],
            "vestibule: warning: VESTIBULE_WORKER is no setting; did you mean VESTIBULE_WORKERS?\n\
             vestibule: VESTIBULE_WORKERS: 0 is out of range; write 1 to 1024\n"
                .to_owned(),
        ),
    ] {
        let args: Vec<&str> = ["check", FORWARD].into_iter().chain(args).collect();
        let (_, told, code) = program(&args, &environment);
        assert_eq!((told, code), (message, Some(1)));
    }
    let (_, told, code) = program(&["check", FORWARD], &[("VESTIBULE_WORKERS", "many")]);
    let told = told.lines().next();
    assert_eq!(
        told,
        Some(
            "error: invalid value 'many' for 'VESTIBULE_WORKERS': \"many\" is not a whole number; write digits, such as 1000, or auto"
        )
    );
    assert_eq!(code, Some(2));
}

#[test]
fn check_is_content_with_the_xmpp_service() {
    let (page, told, code) = program(&["check", "--config=config/xmpp.toml"], &[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(page.lines().last(), Some("# Settings are fine."), "{page}");
    for said in [
        "listen = \"xmpp://0.0.0.0:5222\"",
        "listen = \"xmpps://0.0.0.0:5223\"",
        "listen = \"auto://0.0.0.0:443\"",
        "listen = \"xmpp-server://0.0.0.0:5269\"",
        "listen = \"xmpps-server://0.0.0.0:5270\"",
        "alpn = [\"xmpp-client\", \"xmpp-server\"]",
        "protocol = \"xmpp-server\"",
        "tls = \"passthrough\"",
        "proxy_protocol = \"v2\"",
        "to_must_match = true",
        "on_drain = \"system-shutdown\"",
    ] {
        assert!(page.contains(said), "{said} is missing in\n{page}");
    }
}

#[test]
fn check_is_content_with_the_web_chat() {
    let (page, told, code) = program(&["check", "--config=config/http.toml"], &[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(page.lines().last(), Some("# Settings are fine."), "{page}");
    for said in [
        "listen = \"https://0.0.0.0:443\"",
        "alpn = [\"h2\", \"http/1.1\", \"http/1.0\"]",
        "listen = \"http://0.0.0.0:80\"\nhttps_port = 443",
        "paths = [\"/xmpp-websocket\", \"/http-bind\"]",
        "address = \"http://127.0.0.1:5280\"",
        "sticky = \"cookie\"",
        "body_size = \"64MiB\"",
        "answer = \"3m\"",
    ] {
        assert!(page.contains(said), "{said} is missing in\n{page}");
    }
}

#[test]
fn check_ends_with_a_verdict() {
    // The pair under certs/ would do, if every machine's clock were past the day it was made.
    let folder = std::env::temp_dir().join(format!("vestibule-verdict-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let pair = ["cert", "key"].map(|kind| format!("--{kind}={}/{kind}.pem", folder.display()));

    let too_many = "--max-connections=500000000";
    for (flags, variables, verdict) in [
        (vec![], vec![], "# Settings are fine."),
        (
            vec![too_many],
            vec![],
            "# Settings are usable, with 1 warning.",
        ),
        (
            vec![too_many],
            vec![("VESTIBULE_XYZ", "")],
            "# Settings are usable, with 2 warnings.",
        ),
    ] {
        let args: Vec<&str> = ["check", FORWARD]
            .into_iter()
            .chain(pair.iter().map(String::as_str))
            .chain(flags)
            .collect();
        let (page, told, code) = program(&args, &variables);
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(page.lines().last(), Some(verdict), "{page}{told}");
        let is_setting = |line: &&str| !line.starts_with("cert = ") && !line.starts_with("key = ");
        let mut lines = page.lines().filter(is_setting); // a path is as long as it is
        assert!(lines.all(|line| line.len() <= 100), "{page}");
        assert!(page.contains("keepalive = \"75s\""), "{page}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_is_no_toml_is_told_by_line() {
    let path = std::env::temp_dir().join(format!("vestibule-broken-{}.toml", std::process::id()));
    fs::write(&path, "[[listener]]\nlisten = tls://0.0.0.0:1\n").unwrap();
    let told = File::open(&path)
        .resolve_on(MACHINE)
        .unwrap_err()
        .to_string();
    fs::remove_file(&path).unwrap();
    let told = told.replace(path.to_str().unwrap(), "e.toml");
    assert!(told.starts_with("e.toml, line 2: "), "{told}");
    assert!(
        told.ends_with("; write KEY = VALUE, where a text stands in quotes: name = \"chat\""),
        "{told}"
    );
}
