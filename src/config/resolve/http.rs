//! HTTP: `[http]`, listeners that only redirect, and faults of what makes no sense without it.

use super::super::file::{HttpTable, ListenerTable, RouteTable, UpstreamTable};
use super::super::{Backend, Http, Protocol, Route, Sticky};
use super::routes::{for_http, serves_http, takes};
use super::{
    Faults, Given, Listener, Place, Scheme, Upstream, UpstreamId, defaults, duration_text, said,
    size_text, words,
};

pub(super) fn http(table: &HttpTable, faults: &mut Faults) -> Http {
    let body_size = table.body_size.as_ref();
    let body_size = body_size.map(|given| given.with(given.value as u64));
    let body_rate = faults.zero_or_within(
        table.body_rate.as_ref(),
        defaults::BODY_RATE as usize,
        &defaults::BODY_RATES,
        size_text,
    );
    Http {
        head_size: faults.within(
            table.head_size.as_ref(),
            defaults::HEAD_SIZE,
            &defaults::HEAD_SIZES,
            size_text,
        ),
        headers: faults.within(
            table.headers.as_ref(),
            defaults::HEADERS,
            &defaults::HEADERS_RANGE,
            |n| n.to_string(),
        ),
        body_size: faults.zero_or_within(body_size.as_ref(), 0, &defaults::BODY_SIZES, |size| {
            size_text(usize::try_from(size).unwrap_or(usize::MAX))
        }),
        body_rate: u32::try_from(body_rate).unwrap_or(u32::MAX),
        streams: faults.within(
            table.streams.as_ref(),
            defaults::STREAMS,
            &defaults::STREAMS_RANGE,
            |n| n.to_string(),
        ),
        underscores: said(table.underscores.as_ref(), false),
        idle_backends: faults.within(
            table.idle_backends.as_ref(),
            defaults::IDLE_BACKENDS,
            &defaults::IDLE_BACKENDS_RANGE,
            |n| n.to_string(),
        ),
        idle_backend: faults.zero_or_within(
            table.idle_backend.as_ref(),
            defaults::IDLE_BACKEND,
            &defaults::DEADLINES,
            duration_text,
        ),
        backend_age: faults.zero_or_within(
            table.backend_age.as_ref(),
            defaults::BACKEND_AGE,
            &defaults::DEADLINES,
            duration_text,
        ),
    }
}

/// Faults of keys that a listener of this scheme has no use for.
pub(super) fn misplaced(table: &ListenerTable, scheme: Scheme, faults: &mut Faults) {
    fn empty<T>(given: Option<&Given<Vec<T>>>) -> Option<Given<bool>> {
        given.map(|given| given.with(given.value.is_empty()))
    }
    fn said<T>(given: Option<&Given<T>>) -> Option<Given<bool>> {
        given.map(|given| given.with(false))
    }
    let mut refuse = |given: Option<Given<bool>>, key: &str, problem: &str, other: &str| {
        if let Some(given) = given.filter(|given| !given.value) {
            faults.push(given.fault(problem, format!("{other}take {key} away")));
        }
    };
    let domains = empty(table.domains.as_ref());
    let trusted = empty(table.trusted_proxies.as_ref());
    if scheme == Scheme::Http {
        for (given, key) in [
            (said(table.upstream.as_ref()), "upstream"),
            (said(table.alpn.as_ref()), "alpn"),
            (said(table.tls.as_ref()), "tls"),
            (domains, "domains"),
            (trusted, "trusted_proxies"),
        ] {
            let problem = "a listener with scheme http only redirects to https";
            refuse(given, key, problem, "");
        }
        return;
    }
    if !scheme.carries_xmpp() {
        let problem = format!("a listener with scheme {scheme} knows no XMPP domains");
        refuse(domains, "domains", &problem, "choose another scheme, or ");
    }
    if !scheme.carries_http() {
        let problem = format!("a listener with scheme {scheme} knows no headers of HTTP");
        let other = "choose https or auto, or ";
        refuse(trusted, "trusted_proxies", &problem, other);
    }
    let problem = "only a listener with scheme http sends its clients to another port";
    refuse(said(table.https_port.as_ref()), "https_port", problem, "");
}

/// Faults of ALPN protocols that nobody would be there for.
pub(super) fn check_alpn(
    given: &Given<Vec<String>>,
    at: usize,
    listeners: &[Listener],
    routes: &[Route],
    faults: &mut Faults,
) {
    let is_http = |name: &&String| defaults::HTTPS_ALPN.contains(&name.as_str());
    let scheme = listeners[at].scheme;
    if scheme == Scheme::Https
        && let Some(name) = given.value.iter().find(|name| !is_http(name))
    {
        faults.push(given.fault(
            format!("a listener with scheme https does not speak {name:?}"),
            format!("write {}", words::listed(&defaults::HTTPS_ALPN)),
        ));
    } else if scheme == Scheme::Auto
        && let Some(name) = given.value.iter().find(is_http)
        && !serves_http(at, listeners, routes)
    {
        faults.unless_it_follows(given.fault(
            format!("{name:?} is HTTP, which no route is for here"),
            format!("add a [[route]] with protocol = \"http\", or take {name:?} away"),
        ));
    }
}

/// Where listeners of scheme `http` send their clients.
pub(super) fn redirects(
    listeners: &mut [Listener],
    places: &[Place],
    routes: &[Route],
    faults: &mut Faults,
) {
    let scheme = |wanted| listeners.iter().position(|l| l.scheme == wanted);
    let by_route = |&at: &usize| {
        let mut routes = routes.iter();
        let listener = &listeners[at];
        listener.scheme == Scheme::Auto
            && routes.any(|route| takes(route, at, listener, Some(Protocol::Http)))
    };
    let home = scheme(Scheme::Https).or_else(|| (0..listeners.len()).find(by_route));
    let home = home.map(|at| (listeners[at].upstream, listeners[at].addr.port()));
    let plain = listeners.iter_mut().zip(places);
    for (listener, place) in plain.filter(|(listener, _)| listener.scheme == Scheme::Http) {
        listener.upstream = home.map_or(UpstreamId(0), |(upstream, _)| upstream);
        match (place.https_port, home) {
            (Some(port), _) | (None, Some((_, port))) => listener.https_port = port,
            (None, None) => {
                let mut place = place.table.clone();
                let mut way_out = "add --forward https://ADDR:PORT=BACKEND";
                if place.line.is_some() {
                    place.key.push_str(".https_port");
                    way_out = "add a [[listener]] with scheme https, or write its port here";
                }
                let problem = "there is no https listener to send clients to";
                faults.unless_it_follows(place.fault(problem, way_out));
            }
        }
    }
}

/// Faults of `http://` and `https://` backends where XMPP is spoken.
pub(super) fn backends(
    listeners: &[Listener],
    places: &[Place],
    upstreams: &[Upstream],
    faults: &mut Faults,
) {
    for (listener, place) in listeners.iter().zip(places) {
        if listener.scheme.carries_xmpp()
            && let Some(backend) = backend_for_http(listener.upstream, upstreams)
        {
            let way_out = match listener.scheme {
                Scheme::Auto => "bring HTTP there by a [[route]] with protocol = \"http\"",
                _ => "use scheme https, or write a backend that speaks XMPP",
            };
            let problem = format!("its XMPP would go to {backend}");
            faults.unless_it_follows(place.listen.fault(problem, way_out));
        }
    }
}

/// The same of routes.
pub(super) fn backends_of_routes(
    tables: &[RouteTable],
    routes: &[Route],
    listeners: &[Listener],
    upstreams: &[Upstream],
    faults: &mut Faults,
) {
    for (table, route) in tables.iter().zip(routes) {
        let mut at = listeners.iter().enumerate();
        let by_xmpp = at.any(|(at, listener)| {
            let mut kinds = [Protocol::XmppClient, Protocol::XmppServer].into_iter();
            kinds.any(|kind| takes(route, at, listener, Some(kind)))
        });
        if by_xmpp && let Some(backend) = backend_for_http(route.upstream, upstreams) {
            let place = Given {
                value: (),
                key: table.key.clone(),
                line: Some(table.line),
            };
            let problem = format!("its XMPP would go to {backend}");
            let way_out = match route.protocol {
                None => "write protocol = \"http\", or name the listeners that it is for",
                Some(_) => "write a backend that speaks XMPP",
            };
            faults.unless_it_follows(place.fault(problem, way_out));
        }
    }
}

fn backend_for_http(id: UpstreamId, upstreams: &[Upstream]) -> Option<&Backend> {
    let mut backends = upstreams.get(usize::from(id.0))?.backends.iter();
    backends.find(|backend| matches!(backend, Backend::Http { .. } | Backend::Https { .. }))
}

/// Faults of what is said about HTTP of upstreams that none is brought to.
pub(super) fn check_upstreams(
    tables: &[UpstreamTable],
    listeners: &[Listener],
    routes: &[Route],
    upstreams: &[Upstream],
    faults: &mut Faults,
) {
    for table in tables {
        let http2 = table.http2.as_ref().filter(|given| given.value);
        let sticky = table.sticky.as_ref();
        let sticky = sticky.filter(|given| given.value == Sticky::Cookie);
        let said = [
            http2.map(|given| (given.with(()), "http2")),
            sticky.map(|given| (given.with(()), "sticky = \"cookie\"")),
        ];
        let name = table.name.as_ref().map(|name| name.value.as_str());
        let id = upstreams.iter().position(|u| Some(u.name.as_str()) == name);
        let Some(id) = id.and_then(|id| u16::try_from(id).ok()).map(UpstreamId) else {
            continue;
        };
        let mut used = false;
        let mut by_http = false;
        for (at, listener) in listeners.iter().enumerate() {
            used |= listener.upstream == id && listener.scheme != Scheme::Http;
            by_http |= listener.upstream == id && listener.scheme == Scheme::Https;
            for route in routes.iter().filter(|route| route.upstream == id) {
                used = true;
                by_http |= for_http(route, at, listener);
            }
        }
        for (given, what) in said.into_iter().flatten() {
            if used && !by_http {
                faults.unless_it_follows(given.fault(
                    "no HTTP is brought to this upstream",
                    format!("name it in a listener with scheme https or in a [[route]] with protocol = \"http\", or take {what} away"),
                ));
            }
        }
    }
}
