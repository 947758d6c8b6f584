//! Routes: names joined, and none that can never be taken. What ALPN offers follows from them.

use super::super::file::RouteTable;
use super::super::{ListenerId, Protocol, Route};
use super::{
    Fault, Faults, Given, Listener, Scheme, Upstream, defaults, said, upstream_of, way_to_known,
    words,
};

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
            protocol: table.protocol.as_ref().map(|given| given.value),
            listeners: known,
            upstream: upstream_of(table.upstream.as_ref(), &whole, upstreams, faults),
            tls: table.tls.as_ref().map(|given| given.value),
        };
        if route.hosts.is_empty() && route.protocol.is_none() {
            faults.unless_it_follows(whole.fault(
                "has neither hosts nor protocol, so nothing would reach the upstream of its listeners",
                "add hosts or protocol, or set upstream in the [[listener]]",
            ));
        } else if unknown.is_empty() {
            let earlier = tables.iter().zip(&routes);
            let mut earlier = earlier.filter(|(_, other)| covers(other, &route, listeners.len()));
            if let Some((other, _)) = earlier.next() {
                faults.unless_it_follows(whole.fault(
                    format!("{} takes all that this one would", other.key),
                    format!("put {} before it, or take one of them away", table.key),
                ));
            }
            if let Some(given) = &table.protocol
                && !listeners.is_empty()
                && !holds_for(&route, listeners.len())
                    .filter_map(|at| listeners.get(at))
                    .any(|listener| may_speak(listener.scheme, given.value))
            {
                let schemes: Vec<&str> = Scheme::WORDS
                    .iter()
                    .copied()
                    .filter(|word| {
                        word.parse()
                            .is_ok_and(|scheme| may_speak(scheme, given.value))
                    })
                    .collect();
                faults.unless_it_follows(given.fault(
                    format!("it holds for no listener that speaks {}", given.value),
                    format!("such are those with scheme {}", words::listed(&schemes)),
                ));
            }
        }
        routes.push(route);
    }
    routes
}

/// What a listener offers by ALPN where nothing is said.
pub(super) fn default_alpn(id: ListenerId, scheme: Scheme, routes: &[Route]) -> Vec<String> {
    let client = defaults::XMPPS_ALPN.to_owned();
    let server = defaults::XMPPS_SERVER_ALPN.to_owned();
    match scheme {
        Scheme::Tls | Scheme::Xmpp | Scheme::XmppServer => Vec::new(),
        Scheme::Xmpps => vec![client],
        Scheme::XmppsServer => vec![server],
        Scheme::Auto => {
            let for_servers = routes.iter().any(|route| {
                route.protocol == Some(Protocol::XmppServer)
                    && (route.listeners.is_empty() || route.listeners.contains(&id))
            });
            if for_servers {
                vec![client, server]
            } else {
                vec![client]
            }
        }
    }
}

/// The listeners that a route names, and a fault for each name that is none.
fn listener_ids(table: &RouteTable, listeners: &[Listener]) -> (Vec<ListenerId>, Vec<Fault>) {
    let (mut ids, mut faults) = (Vec::new(), Vec::new());
    let Some(given) = &table.listeners else {
        return (ids, faults);
    };
    let names: Vec<&str> = listeners.iter().map(|other| other.name.as_str()).collect();
    for name in &given.value {
        match names.iter().position(|known| known == name) {
            Some(at) => ids.push(ListenerId(u16::try_from(at).unwrap_or(u16::MAX))),
            None => faults.push(given.fault(
                format!("no listener is named {name:?}"),
                way_to_known(name, &names, "[[listener]]"),
            )),
        }
    }
    (ids, faults)
}

/// Whether every connection that `later` fits is taken by `earlier`.
fn covers(earlier: &Route, later: &Route, listeners: usize) -> bool {
    let hosts = earlier.hosts.is_empty()
        || !later.hosts.is_empty()
            && later.hosts.iter().all(|host| {
                let wider = host
                    .split_once('.')
                    .map(|(_, parent)| format!("*.{parent}"));
                earlier.hosts.contains(host)
                    || wider.is_some_and(|wider| earlier.hosts.contains(&wider))
            });
    let protocol = earlier.protocol.is_none() || earlier.protocol == later.protocol;
    let taken: Vec<usize> = holds_for(earlier, listeners).collect();
    hosts && protocol && holds_for(later, listeners).all(|at| taken.contains(&at))
}

/// Indices of the listeners that a route holds for.
fn holds_for(route: &Route, listeners: usize) -> impl Iterator<Item = usize> {
    (0..listeners).filter(|&at| {
        route.listeners.is_empty() || route.listeners.iter().any(|id| usize::from(id.0) == at)
    })
}

/// Whether what a listener of this scheme carries may turn out to be this protocol. (`tls` is not looked into.)
fn may_speak(scheme: Scheme, protocol: Protocol) -> bool {
    match scheme {
        Scheme::Tls => false,
        Scheme::Auto => true,
        Scheme::Xmpp | Scheme::Xmpps => protocol == Protocol::XmppClient,
        Scheme::XmppServer | Scheme::XmppsServer => protocol == Protocol::XmppServer,
    }
}
