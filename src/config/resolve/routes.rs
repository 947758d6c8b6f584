//! Routes: names joined, and none that can never be taken. What ALPN offers follows from them.

use super::super::file::RouteTable;
use super::super::{ListenerId, Protocol, Route};
use super::{
    Fault, Faults, Given, Listener, Scheme, TlsMode, Upstream, defaults, said, upstream_of,
    way_to_known, words,
};

/// What a connection may be to routes. `None`: what is spoken is not known, since TLS goes on or nobody looks.
const KINDS: [Option<Protocol>; 4] = [
    None,
    Some(Protocol::XmppClient),
    Some(Protocol::XmppServer),
    Some(Protocol::Http),
];

/// The routes in the order given, and a fault for each that could never be taken.
pub(super) fn routes(
    tables: &[RouteTable],
    listeners: &[Listener],
    upstreams: &[Upstream],
    faults: &mut Faults,
) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for table in tables {
        let whole = Given {
            value: (),
            key: table.key.clone(),
            line: Some(table.line),
        };
        let (known, unknown) = listener_ids(table, listeners);
        for fault in &unknown {
            faults.unless_it_follows(fault.clone());
        }
        let route = Route {
            hosts: said(table.hosts.as_ref(), Vec::new()),
            paths: said(table.paths.as_ref(), Vec::new()),
            protocol: table.protocol.as_ref().map(|given| given.value),
            listeners: known,
            upstream: upstream_of(table.upstream.as_ref(), &whole, upstreams, faults),
            tls: table.tls.as_ref().map(|given| given.value),
        };
        if route.hosts.is_empty() && asked(&route).is_none() {
            faults.unless_it_follows(whole.fault(
                "has no hosts, protocol or paths, so nothing would reach the upstream of its listeners",
                "add one of them, or set upstream in the [[listener]]",
            ));
        } else if let Some(fault) = contradiction(table, &route) {
            faults.push(fault);
        } else if unknown.is_empty() && !listeners.is_empty() {
            let earlier = tables.iter().zip(&routes);
            if !takes_any(&route, listeners) {
                faults.unless_it_follows(without_listener(table, &whole, &route, listeners));
            } else if let Some(fault) = shadow(table, &whole, &route, earlier, listeners) {
                faults.unless_it_follows(fault);
            }
        }
        routes.push(route);
    }
    routes
}

/// What a route cannot ask for at once.
fn contradiction(table: &RouteTable, route: &Route) -> Option<Fault> {
    let paths = table
        .paths
        .as_ref()
        .filter(|given| !given.value.is_empty())?;
    if let Some(protocol) = route.protocol
        && protocol != Protocol::Http
    {
        return Some(paths.fault(
            format!("{protocol} has no paths"),
            "write protocol = \"http\", or take paths away",
        ));
    }
    (route.tls == Some(TlsMode::Passthrough)).then(|| {
        paths.fault(
            "nobody sees the paths of TLS that passes through",
            "take paths away, or tls = \"passthrough\"",
        )
    })
}

/// The fault of a route that no listener has a use for.
fn without_listener(
    table: &RouteTable,
    whole: &Given<()>,
    route: &Route,
    listeners: &[Listener],
) -> Fault {
    let asking = table.protocol.as_ref().map(|given| given.with(()));
    let paths = table.paths.as_ref().map(|given| given.with(()));
    let (Some(protocol), Some(given)) = (asked(route), asking.or_else(|| paths.clone())) else {
        return whole.fault(
            "it holds for no listener but with scheme http, which only redirects",
            "add a [[listener]] with another scheme, or take the route away",
        );
    };
    let passes = route.tls.is_none()
        && listeners.iter().enumerate().any(|(at, listener)| {
            holds_at(route, at) && may_speak(listener.scheme, Some(protocol))
        });
    if let Some(paths) = paths.filter(|_| passes) {
        return paths.fault(
            "nobody sees the paths of TLS that passes through at its listeners",
            "take paths away, or write tls = \"terminate\"",
        );
    }
    let schemes: Vec<&str> = Scheme::WORDS
        .iter()
        .copied()
        .filter(|word| {
            word.parse()
                .is_ok_and(|scheme| may_speak(scheme, Some(protocol)))
        })
        .collect();
    given.fault(
        format!("it holds for no listener that speaks {protocol}"),
        format!("such are those with scheme {}", words::listed(&schemes)),
    )
}

/// The fault of a route that leaves nothing to another one.
fn shadow<'a>(
    table: &RouteTable,
    whole: &Given<()>,
    route: &Route,
    mut earlier: impl Iterator<Item = (&'a RouteTable, &'a Route)>,
    listeners: &[Listener],
) -> Option<Fault> {
    earlier.find_map(|(other_table, other)| {
        if covers(other, route, listeners) {
            return Some(whole.fault(
                format!("{} takes all that this one would", other_table.key),
                format!("put {} before it, or take one of them away", table.key),
            ));
        }
        // Paths are only seen where TLS ends, so whoever passes TLS through comes first in any case.
        (!other.paths.is_empty() && passes_over(route, other, listeners)).then(|| {
            whole.fault(
                format!(
                    "TLS that passes through here hides the paths of {}",
                    other_table.key
                ),
                "choose other hosts or listeners, or take one of them away",
            )
        })
    })
}

/// What a listener offers by ALPN where nothing is said.
pub(super) fn default_alpn(at: usize, listeners: &[Listener], routes: &[Route]) -> Vec<String> {
    let client = defaults::XMPPS_ALPN;
    let server = defaults::XMPPS_SERVER_ALPN;
    let listener = &listeners[at];
    let offers = match listener.scheme {
        Scheme::Tls | Scheme::Xmpp | Scheme::XmppServer | Scheme::Http => Vec::new(),
        Scheme::Https => defaults::HTTPS_ALPN.to_vec(),
        Scheme::Xmpps => vec![client],
        Scheme::XmppsServer => vec![server],
        Scheme::Auto => {
            let servers = Some(Protocol::XmppServer);
            let for_servers = routes
                .iter()
                .any(|route| takes(route, at, listener, servers));
            let mut offers = vec![client];
            offers.extend(for_servers.then_some(server));
            if serves_http(at, listeners, routes) {
                offers.extend(defaults::HTTPS_ALPN);
            }
            offers
        }
    };
    offers.into_iter().map(str::to_owned).collect()
}

/// Whether HTTP is served at a listener: as its scheme says, or on `auto` by a route.
pub(super) fn serves_http(at: usize, listeners: &[Listener], routes: &[Route]) -> bool {
    let listener = &listeners[at];
    listener.scheme == Scheme::Https || routes.iter().any(|route| for_http(route, at, listener))
}

/// Whether a route takes requests at a listener, TLS having ended there.
pub(super) fn for_http(route: &Route, at: usize, listener: &Listener) -> bool {
    ends_tls(route, listener) && takes(route, at, listener, Some(Protocol::Http))
}

/// The listeners that a route names, and a fault for each name that is none or of no use.
fn listener_ids(table: &RouteTable, listeners: &[Listener]) -> (Vec<ListenerId>, Vec<Fault>) {
    let (mut ids, mut faults) = (Vec::new(), Vec::new());
    let Some(given) = &table.listeners else {
        return (ids, faults);
    };
    let names: Vec<&str> = listeners.iter().map(|other| other.name.as_str()).collect();
    for name in &given.value {
        match names.iter().position(|known| known == name) {
            Some(at) if listeners[at].scheme == Scheme::Http => faults.push(given.fault(
                format!("{name:?} only redirects to https"),
                "name the https listener, or take it away",
            )),
            Some(at) => ids.push(ListenerId(u16::try_from(at).unwrap_or(u16::MAX))),
            None => faults.push(given.fault(
                format!("no listener is named {name:?}"),
                way_to_known(name, &names, "[[listener]]"),
            )),
        }
    }
    (ids, faults)
}

/// What a route wants to be spoken.
fn asked(route: &Route) -> Option<Protocol> {
    if route.paths.is_empty() {
        route.protocol
    } else {
        Some(Protocol::Http)
    }
}

fn ends_tls(route: &Route, listener: &Listener) -> bool {
    route.tls.unwrap_or(listener.tls) == TlsMode::Terminate
}

fn holds_at(route: &Route, at: usize) -> bool {
    route.listeners.is_empty() || route.listeners.iter().any(|id| usize::from(id.0) == at)
}

/// Whether a route may take what comes to a listener as one of [`KINDS`]; [`crate::route`] does the same for hosts and
/// paths at hand.
pub(super) fn takes(route: &Route, at: usize, listener: &Listener, kind: Option<Protocol>) -> bool {
    let (auto, asked) = (listener.scheme == Scheme::Auto, asked(route));
    let wanted = match (asked, kind) {
        (None, Some(Protocol::XmppServer)) => !auto,
        (None, Some(Protocol::Http)) => !auto || !ends_tls(route, listener),
        (None, _) => true,
        (asked, kind) => asked == kind,
    };
    holds_at(route, at)
        && may_speak(listener.scheme, kind)
        && wanted
        && (route.paths.is_empty() || ends_tls(route, listener))
}

fn takes_any(route: &Route, listeners: &[Listener]) -> bool {
    let mut listeners = listeners.iter().enumerate();
    listeners.any(|(at, listener)| KINDS.iter().any(|&kind| takes(route, at, listener, kind)))
}

/// Whether all that `later` takes is taken by `earlier`.
fn covers(earlier: &Route, later: &Route, listeners: &[Listener]) -> bool {
    let taken = listeners.iter().enumerate().all(|(at, listener)| {
        let mut kinds = KINDS.into_iter();
        kinds.all(|kind| {
            !takes(later, at, listener, kind)
                || takes(earlier, at, listener, kind)
                    // Where TLS passes through it is chosen by what is known without paths.
                    && (earlier.paths.is_empty() || ends_tls(later, listener))
        })
    });
    covers_hosts(earlier, later) && covers_paths(earlier, later) && taken
}

fn covers_hosts(earlier: &Route, later: &Route) -> bool {
    earlier.hosts.is_empty()
        || !later.hosts.is_empty()
            && later.hosts.iter().all(|host| {
                let wider = host
                    .split_once('.')
                    .map(|(_, parent)| format!("*.{parent}"));
                earlier.hosts.contains(host)
                    || wider.is_some_and(|wider| earlier.hosts.contains(&wider))
            })
}

fn covers_paths(earlier: &Route, later: &Route) -> bool {
    let covered = |path: &str| {
        earlier.paths.iter().any(|wider| {
            let rest = path.strip_prefix(wider.as_str());
            wider == "/" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    match later.paths.as_slice() {
        [] => earlier.paths.is_empty() || covered("/"),
        paths => earlier.paths.is_empty() || paths.iter().all(|path| covered(path)),
    }
}

/// Whether `passing` takes by TLS all that `other` would by paths.
fn passes_over(passing: &Route, other: &Route, listeners: &[Listener]) -> bool {
    let http = Some(Protocol::Http);
    let mut listeners = listeners.iter().enumerate();
    covers_hosts(passing, other)
        && listeners.all(|(at, listener)| {
            !takes(other, at, listener, http)
                || takes(passing, at, listener, http) && !ends_tls(passing, listener)
        })
}

/// Whether what comes to a listener of this scheme may turn out to be one of [`KINDS`]. (`tls` is not looked into.)
fn may_speak(scheme: Scheme, kind: Option<Protocol>) -> bool {
    match scheme {
        Scheme::Tls => kind.is_none(),
        Scheme::Http => false,
        Scheme::Https => kind == Some(Protocol::Http),
        Scheme::Auto => true,
        Scheme::Xmpp | Scheme::Xmpps => kind == Some(Protocol::XmppClient),
        Scheme::XmppServer | Scheme::XmppsServer => kind == Some(Protocol::XmppServer),
    }
}
