//! From facts about a connection to an upstream.
//!
//! A [`RouteTable`] is what the settings say about one listener, in the form that connections ask it in: a look-up by
//! host name, then the few routes that have no name. It never changes; a reload builds another one.

mod name;

use std::collections::{HashMap, HashSet};

use crate::config::{Config, Listener, ListenerId, Protocol, Route, Scheme, TlsMode, UpstreamId};

use name::Names;

/// Where a connection goes, and where its TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Whose backends serve it.
    pub upstream: UpstreamId,
    /// Here or there.
    pub tls: TlsMode,
}

/// Where a request of HTTP goes, TLS having ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpChoice {
    /// Whose backends serve it.
    pub upstream: UpstreamId,
    /// Index in [`RouteTable::http_routes`].
    pub route: u16,
}

/// The routes of one listener.
#[derive(Debug)]
pub struct RouteTable {
    scheme: Scheme,
    /// Where nothing else fits.
    default: Choice,
    /// Those that apply here, in the order of the settings.
    routes: Vec<Entry>,
    /// Indices of `routes`, by their hosts.
    by_host: Names,
    /// Indices of `routes` without hosts.
    any_host: Vec<usize>,
    /// Whether the listener says which domains it serves.
    says_domains: bool,
    domains: Vec<String>,
    /// Indices of `domains`; also of those beyond [`DOMAINS_MAX`], which have one index in common.
    by_domain: Names,
    /// Hosts of HTTP alone that are passed through; they are served, and no XMPP domains.
    by_passed: Names,
    /// Names of what requests are chosen by, the last being the listener's own upstream.
    labels: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    protocol: Option<Protocol>,
    /// Beginnings of paths; any if there is none.
    paths: Vec<Box<str>>,
    choice: Choice,
    /// Index in `labels`, if requests are taken here: HTTP that it is for, its TLS ended.
    label: Option<u16>,
}

impl Entry {
    fn new(route: &Route, here: &Listener) -> Self {
        Self {
            protocol: match route.paths.as_slice() {
                [] => route.protocol,
                _ => Some(Protocol::Http),
            },
            paths: route
                .paths
                .iter()
                .map(|path| path.as_str().into())
                .collect(),
            choice: Choice {
                upstream: route.upstream,
                tls: route.tls.unwrap_or(here.tls),
            },
            label: None,
        }
    }

    fn takes_requests(&self, scheme: Scheme) -> bool {
        let asked = match self.protocol {
            None => scheme == Scheme::Https,
            Some(protocol) => protocol == Protocol::Http,
        };
        scheme.carries_http() && asked && self.choice.tls == TlsMode::Terminate
    }

    fn fits_path(&self, path: &str) -> bool {
        let fits = |prefix: &str| {
            let rest = path.strip_prefix(prefix);
            // Only "/" ends with a slash.
            rest.is_some_and(|rest| prefix == "/" || rest.is_empty() || rest.starts_with('/'))
        };
        self.paths.is_empty() || self.paths.iter().any(|prefix| fits(prefix))
    }
}

impl RouteTable {
    /// The routes of this listener, which must be one of `config`.
    pub fn new(config: &Config, listener: ListenerId) -> Self {
        let here = &config.listeners[usize::from(listener.0)];
        let applies =
            |listeners: &[ListenerId]| listeners.is_empty() || listeners.contains(&listener);
        let mut routes = Vec::new();
        let mut by_host = Names::default();
        let mut by_passed = Names::default();
        let mut any_host = Vec::new();
        let mut named: Vec<&String> = here.domains.iter().collect();
        let mut requested = Vec::new();
        let numbered = (1..).zip(&config.routes);
        for (number, route) in numbered.filter(|(_, route)| applies(&route.listeners)) {
            let index = routes.len();
            let mut entry = Entry::new(route, here);
            for host in &route.hosts {
                by_host.add(host, index);
            }
            if route.hosts.is_empty() {
                any_host.push(index);
            }
            if entry.takes_requests(here.scheme) {
                let last = (LABELS_MAX - 2).min(requested.len());
                entry.label = Some(last as u16);
                requested.push((number, route));
            }
            match (entry.protocol, entry.choice.tls) {
                (Some(Protocol::Http), TlsMode::Terminate) => {}
                (Some(Protocol::Http), TlsMode::Passthrough) => {
                    for host in &route.hosts {
                        by_passed.add(host, index);
                    }
                }
                _ => named.extend(&route.hosts),
            }
            routes.push(entry);
        }

        let mut domains = Vec::new();
        let mut by_domain = Names::default();
        let mut seen = HashSet::new();
        for name in named {
            if seen.insert(name) {
                by_domain.add(name, domains.len());
                if domains.len() < DOMAINS_MAX {
                    domains.push(name.clone());
                }
            }
        }
        Self {
            scheme: here.scheme,
            default: Choice {
                upstream: here.upstream,
                tls: here.tls,
            },
            routes,
            by_host,
            any_host,
            says_domains: !here.domains.is_empty(),
            domains,
            by_domain,
            by_passed,
            labels: labels(&requested),
        }
    }

    /// The first route that fits, else the listener's own upstream.
    ///
    /// `host` is the SNI name, else the stream's `to`; `protocol` what is spoken, as far as known. What is not known fits
    /// only a route that does not ask; no path is. `None`: refuse; on a listener of scheme `auto` servers are served only
    /// by routes that name them, and HTTP as well, if it is not passed through.
    pub fn choose(&self, host: Option<&str>, protocol: Option<Protocol>) -> Option<Choice> {
        let protocol = match self.scheme {
            Scheme::Https => Some(Protocol::Http),
            _ => protocol,
        };
        let unasked = |choice: &Choice| match (self.scheme, protocol) {
            (Scheme::Auto, Some(Protocol::XmppServer)) => false,
            (Scheme::Auto, Some(Protocol::Http)) => choice.tls == TlsMode::Passthrough,
            _ => true,
        };
        let fits = |index: &usize| {
            let entry = &self.routes[*index];
            let asked = match entry.protocol {
                None => unasked(&entry.choice),
                asked => asked == protocol,
            };
            asked && entry.paths.is_empty()
        };
        let by_host = host.into_iter().flat_map(|host| self.by_host.get(host));
        // Some hundred routes without hosts would be gone through one by one; nobody has use for more than a few.
        let any_host = self.any_host.iter().copied().find(|index| fits(index));
        match by_host.filter(fits).chain(any_host).min() {
            Some(index) => Some(self.routes[index].choice),
            None => unasked(&self.default).then_some(self.default),
        }
    }

    /// The first route that fits a request whose TLS has ended here, else on a listener of scheme `https` its own
    /// upstream. `None`: none is for it here.
    ///
    /// `host` is the request's, without a port; `path` goes without a query, as it was sent: routes choose
    /// servers, they are no access control.
    pub fn choose_http(&self, host: Option<&str>, path: &str) -> Option<HttpChoice> {
        let fits = |index: &usize| {
            let entry = &self.routes[*index];
            entry.label.is_some() && entry.fits_path(path)
        };
        let by_host = host.into_iter().flat_map(|host| self.by_host.get(host));
        let any_host = self.any_host.iter().copied().find(|index| fits(index));
        match by_host.filter(fits).chain(any_host).min() {
            Some(index) => {
                let Entry { choice, label, .. } = &self.routes[index];
                label.map(|route| HttpChoice {
                    upstream: choice.upstream,
                    route,
                })
            }
            None => self.serves_unrouted_http().then(|| HttpChoice {
                upstream: self.default.upstream,
                route: (self.labels.len() - 1) as u16,
            }),
        }
    }

    /// Whether requests are answered here at all.
    pub fn serves_http(&self) -> bool {
        self.serves_unrouted_http() || self.routes.iter().any(|entry| entry.label.is_some())
    }

    fn serves_unrouted_http(&self) -> bool {
        self.scheme == Scheme::Https && self.default.tls == TlsMode::Terminate
    }

    /// Names of what requests are chosen by: values of metric labels, at most 256. The last is the listener's own
    /// upstream.
    pub fn http_routes(&self) -> &[String] {
        &self.labels
    }

    /// Whether the settings have this host served here. `None`: they do not say, and the certificates decide.
    pub fn serves(&self, host: &str) -> Option<bool> {
        let served = [&self.by_domain, &self.by_passed];
        if served.iter().any(|names| names.get(host).next().is_some()) {
            Some(true)
        } else {
            self.says_domains.then_some(false)
        }
    }

    /// Whether anybody's TLS is left alone here, so that a ClientHello must be looked at before it is answered.
    pub fn passes(&self) -> bool {
        let choices = self.routes.iter().map(|route| route.choice);
        let mut choices = choices.chain([self.default]);
        choices.any(|choice| choice.tls == TlsMode::Passthrough)
    }

    /// Whether other servers are served here at all.
    pub fn offers_servers(&self) -> bool {
        match self.scheme {
            Scheme::XmppServer | Scheme::XmppsServer => true,
            Scheme::Auto => {
                let servers = Some(Protocol::XmppServer);
                self.routes.iter().any(|route| route.protocol == servers)
            }
            Scheme::Tls | Scheme::Xmpp | Scheme::Xmpps | Scheme::Https | Scheme::Http => false,
        }
    }

    /// Whether the TLS of other servers ends here.
    pub fn terminates_servers(&self) -> bool {
        let servers = Some(Protocol::XmppServer);
        let routes = self.routes.iter();
        let mut choices = routes
            .filter(|route| match self.scheme {
                Scheme::Auto => route.protocol == servers,
                _ => true,
            })
            .map(|route| route.choice)
            .chain((self.scheme != Scheme::Auto).then_some(self.default));
        self.offers_servers() && choices.any(|choice| choice.tls == TlsMode::Terminate)
    }

    /// Names that the settings have for what is served here: values of metric labels, at most 256.
    pub fn domains(&self) -> &[String] {
        &self.domains
    }

    /// Index in [`Self::domains`] of what names this host, an exact name first; their number for any other host.
    pub fn domain(&self, host: Option<&str>) -> usize {
        host.and_then(|host| self.by_domain.get(host).next())
            .unwrap_or(self.domains.len())
    }
}

/// A name for each of these routes, which have their numbers in the settings: its path or host where that is its
/// alone, else the number. Those for which there is no room have one in common.
fn labels(routes: &[(usize, &Route)]) -> Vec<String> {
    let candidates = |route: &Route| {
        let first = [&route.paths, &route.hosts].map(|names| names.first().cloned());
        first.into_iter().flatten()
    };
    let mut wanted: HashMap<String, usize> = HashMap::new();
    for name in routes.iter().flat_map(|(_, route)| candidates(route)) {
        *wanted.entry(name).or_default() += 1;
    }
    let taken = |name: &str| [OTHERS, DEFAULT].contains(&name) || name.starts_with("route.");
    let room = match routes.len() < LABELS_MAX {
        true => routes.len(),
        false => LABELS_MAX - 2,
    };
    let named = routes.iter().take(room).map(|(number, route)| {
        let mut names = candidates(route);
        let name = names.find(|name| wanted.get(name) == Some(&1) && !taken(name));
        name.unwrap_or_else(|| format!("route.{number}"))
    });
    let mut labels: Vec<String> = named.collect();
    if room < routes.len() {
        labels.push(OTHERS.to_owned());
    }
    labels.push(DEFAULT.to_owned());
    labels
}

/// Most names that become metric labels.
const DOMAINS_MAX: usize = 256;
/// Most names of routes that do.
const LABELS_MAX: usize = 256;
/// The name of routes beyond them.
const OTHERS: &str = "other";
/// The name of the listener's own upstream.
const DEFAULT: &str = "default";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::file::File;

    const CLIENT: Option<Protocol> = Some(Protocol::XmppClient);
    const SERVER: Option<Protocol> = Some(Protocol::XmppServer);

    /// The first of two listeners, of this scheme; its own upstream is 0. Its routes lead to upstreams 10, 11 and so on.
    fn table(scheme: Scheme, domains: &[&str], routes: Vec<Route>) -> RouteTable {
        let text = "[[certificate]]\ncert = 'c'\nkey = 'k'\n\
            [[upstream]]\nname = 'u'\nbackend = [{ address = '127.0.0.1:1' }]\n\
            [[listener]]\nlisten = 'tls://127.0.0.1:5223'\nupstream = 'u'\n\
            [[listener]]\nlisten = 'tls://127.0.0.1:5224'\nupstream = 'u'\n";
        let mut config = File::parse(text).unwrap().resolve().unwrap();
        let here = &mut config.listeners[0];
        here.scheme = scheme;
        here.domains = domains.iter().map(|&name| name.to_owned()).collect();
        config.routes = routes;
        for (upstream, route) in (10..).zip(&mut config.routes) {
            route.upstream = UpstreamId(upstream);
        }
        RouteTable::new(&config, ListenerId(0))
    }

    fn route(hosts: &[&str], protocol: Option<Protocol>) -> Route {
        Route {
            hosts: hosts.iter().map(|&name| name.to_owned()).collect(),
            paths: Vec::new(),
            protocol,
            listeners: Vec::new(),
            upstream: UpstreamId(0),
            tls: None,
        }
    }

    fn upstream(table: &RouteTable, host: Option<&str>, protocol: Option<Protocol>) -> Option<u16> {
        table.choose(host, protocol).map(|choice| choice.upstream.0)
    }

    #[test]
    fn without_routes_the_listener_decides() {
        let table = table(Scheme::Xmpp, &[], Vec::new());
        let own = Choice {
            upstream: UpstreamId(0),
            tls: TlsMode::Terminate,
        };
        for protocol in [None, CLIENT, SERVER] {
            assert_eq!(table.choose(None, protocol), Some(own));
            assert_eq!(table.choose(Some("a"), protocol), Some(own));
        }
        assert_eq!(table.serves("a"), None);
        assert_eq!((table.domains().len(), table.domain(Some("a"))), (0, 0));
    }

    #[test]
    fn the_first_route_that_fits_in_all_is_taken() {
        let table = table(
            Scheme::Xmpp,
            &[],
            vec![
                route(&["b.example"], SERVER),
                route(&["*.a.example", "b.example"], CLIENT),
                route(&["x.a.example"], None),
                route(&[], SERVER),
                route(&["a.example", "c.example"], None),
                route(&[], CLIENT),
            ],
        );
        for (host, protocol, expected) in [
            (Some("b.example"), SERVER, 10),
            (Some("b.example"), CLIENT, 11),
            (Some("b.example"), None, 0),
            (Some("x.a.example"), CLIENT, 11),
            (Some("x.a.example"), SERVER, 12),
            (Some("x.a.example"), None, 12),
            (Some("y.a.example"), None, 0),
            (Some("c.example"), SERVER, 13),
            (Some("C.example."), CLIENT, 14),
            (Some("a.example"), None, 14),
            (Some("else"), CLIENT, 15),
            (None, CLIENT, 15),
            (None, SERVER, 13),
            (None, None, 0),
        ] {
            assert_eq!(
                upstream(&table, host, protocol),
                Some(expected),
                "{host:?} {protocol:?}"
            );
        }
    }

    #[test]
    fn a_route_may_be_for_other_listeners_and_end_tls_elsewhere() {
        let here = vec![ListenerId(1), ListenerId(0)];
        let table = table(
            Scheme::Xmpp,
            &[],
            vec![
                Route {
                    listeners: vec![ListenerId(1)],
                    ..route(&["a"], None)
                },
                Route {
                    listeners: here,
                    tls: Some(TlsMode::Passthrough),
                    ..route(&["a"], None)
                },
            ],
        );
        assert_eq!(
            table.choose(Some("a"), None),
            Some(Choice {
                upstream: UpstreamId(11),
                tls: TlsMode::Passthrough
            })
        );
        assert_eq!(table.domains(), ["a"]);
    }

    #[test]
    fn servers_on_an_auto_listener_need_a_route_of_their_own() {
        let general = || vec![route(&["a"], None), route(&[], None)];
        let none = table(Scheme::Auto, &[], general());
        assert!(!none.offers_servers());
        assert_eq!(upstream(&none, Some("a"), SERVER), None);
        assert_eq!(upstream(&none, Some("a"), CLIENT), Some(10));

        let mut routes = general();
        routes.push(route(&["a"], SERVER));
        let some = table(Scheme::Auto, &[], routes);
        assert!(some.offers_servers());
        assert_eq!(upstream(&some, Some("a"), SERVER), Some(12));
        assert_eq!(upstream(&some, Some("b"), SERVER), None);
        assert_eq!(upstream(&some, None, SERVER), None);

        assert!(table(Scheme::XmppServer, &[], Vec::new()).offers_servers());
        assert!(!table(Scheme::Xmpps, &[], vec![route(&[], SERVER)]).offers_servers());
    }

    const HTTP: Option<Protocol> = Some(Protocol::Http);

    fn by_path(hosts: &[&str], paths: &[&str]) -> Route {
        Route {
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            ..route(hosts, None)
        }
    }

    /// The upstream and the label of what serves a request.
    fn http<'a>(table: &'a RouteTable, host: &str, path: &str) -> Option<(u16, &'a str)> {
        let choice = table.choose_http(Some(host), path)?;
        let label = &table.http_routes()[usize::from(choice.route)];
        Some((choice.upstream.0, label.as_str()))
    }

    #[test]
    fn without_routes_requests_are_served_where_the_scheme_says_so() {
        let web = table(Scheme::Https, &[], Vec::new());
        assert!(web.serves_http());
        assert_eq!(web.http_routes(), ["default"]);
        assert_eq!(http(&web, "a", "/"), Some((0, "default")));
        let unknown = web.choose_http(None, "*").unwrap();
        assert_eq!((unknown.upstream, unknown.route), (UpstreamId(0), 0));
        for scheme in [Scheme::Auto, Scheme::Tls, Scheme::Xmpps, Scheme::Http] {
            let table = table(scheme, &[], Vec::new());
            assert!(!table.serves_http());
            assert_eq!(http(&table, "a", "/"), None);
        }
    }

    #[test]
    fn the_first_route_that_fits_a_request_in_all_is_taken() {
        let table = table(
            Scheme::Https,
            &[],
            vec![
                route(&[], CLIENT),
                by_path(&["a.example"], &["/ws", "/bosh"]),
                by_path(&[], &["/ws/in"]),
                route(&["*.example"], None),
                by_path(&[], &["/"]),
            ],
        );
        for (host, path, upstream, label) in [
            ("a.example", "/ws", 11, "/ws"),
            ("a.example", "/ws/", 11, "/ws"),
            ("A.example.", "/ws/in", 11, "/ws"),
            ("a.example", "/bosh/x", 11, "/ws"),
            ("a.example", "/wss", 13, "*.example"),
            ("a.example", "/WS", 13, "*.example"),
            ("a.example", "/x/ws", 13, "*.example"),
            ("a.example", "/", 13, "*.example"),
            ("b.example", "/ws/in/x", 12, "/ws/in"),
            ("b.example", "*", 13, "*.example"),
            ("b", "/ws", 14, "/"),
            ("b", "/", 14, "/"),
            ("b", "*", 0, "default"),
        ] {
            let found = http(&table, host, path);
            assert_eq!(found, Some((upstream, label)), "{host} {path}");
        }
        let labels = ["/ws", "/ws/in", "*.example", "/", "default"];
        assert_eq!(table.http_routes(), labels);
    }

    #[test]
    fn requests_on_an_auto_listener_need_a_route_of_their_own() {
        let general = || vec![route(&["a"], None), route(&[], None), route(&[], SERVER)];
        let none = table(Scheme::Auto, &[], general());
        assert!(!none.serves_http());
        assert_eq!(http(&none, "a", "/"), None);
        assert_eq!(upstream(&none, Some("a"), HTTP), None);

        let mut routes = general();
        routes.push(by_path(&["a"], &["/ws"]));
        routes.push(route(&["b"], HTTP));
        let some = table(Scheme::Auto, &[], routes);
        assert!(some.serves_http());
        assert_eq!(http(&some, "a", "/ws/x"), Some((13, "/ws")));
        assert_eq!(http(&some, "a", "/"), None);
        assert_eq!(http(&some, "b", "/"), Some((14, "b")));
        assert_eq!(some.choose_http(None, "/ws"), None);
        assert_eq!(upstream(&some, Some("b"), HTTP), Some(14));
        assert_eq!(upstream(&some, Some("a"), HTTP), None);
        assert_eq!(upstream(&some, Some("a"), CLIENT), Some(10));
        // What is for HTTP alone is no XMPP domain.
        assert_eq!(some.domains(), ["a"]);
    }

    #[test]
    fn requests_do_not_go_where_tls_passes_through() {
        let passing = |hosts: &[&str], protocol| Route {
            tls: Some(TlsMode::Passthrough),
            ..route(hosts, protocol)
        };
        let routes = || {
            vec![
                by_path(&["a"], &["/ws"]),
                passing(&["a"], HTTP),
                passing(&["b"], None),
            ]
        };
        let auto = table(Scheme::Auto, &["x"], routes());
        let web = table(Scheme::Https, &[], routes());
        for table in [&auto, &web] {
            assert!(table.passes());
            assert_eq!(http(table, "a", "/ws"), Some((10, "/ws")));
            // By name, before a path is known.
            assert_eq!(upstream(table, Some("a"), HTTP), Some(11));
            assert_eq!(upstream(table, Some("b"), HTTP), Some(12));
        }
        assert_eq!(http(&web, "a", "/"), Some((0, "default")));
        assert_eq!(http(&auto, "a", "/"), None);
        // Whoever asks for nothing by ALPN is HTTP where nothing else is.
        assert_eq!(upstream(&web, Some("a"), None), Some(11));
        assert_eq!(upstream(&auto, Some("a"), None), Some(0));
        assert_eq!(auto.domains(), ["x", "b"]);
        assert_eq!(
            (auto.serves("a"), auto.serves("c")),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn routes_are_labelled_by_what_is_theirs_alone() {
        let table = table(
            Scheme::Https,
            &[],
            vec![
                route(&["a"], CLIENT),
                by_path(&["a"], &["/ws"]),
                by_path(&["b"], &["/ws"]),
                by_path(&["b"], &["/x"]),
                route(&["default"], HTTP),
                route(&[], None),
            ],
        );
        let labels = ["a", "route.3", "/x", "route.5", "route.6", "default"];
        assert_eq!(table.http_routes(), labels);
    }

    #[test]
    fn labels_of_routes_are_bounded() {
        for (count, labels) in [(254, 255), (255, 256), (256, 256), (400, 256)] {
            let paths: Vec<String> = (0..count).map(|n| format!("/{n}")).collect();
            let routes = paths.iter().map(|path| by_path(&[], &[path.as_str()]));
            let table = table(Scheme::Https, &[], routes.collect());
            assert_eq!(table.http_routes().len(), labels);
            assert_eq!(http(&table, "a", "/253"), Some((263, "/253")));
            let last = match count {
                254 => "/253",
                255 => "/254",
                _ => "other",
            };
            let path = format!("/{}", count - 1);
            assert_eq!(http(&table, "a", &path), Some((count + 9, last)));
            assert_eq!(http(&table, "a", "/x"), Some((0, "default")));
        }
    }

    #[test]
    fn settings_say_what_is_served_or_leave_it() {
        let routes = || {
            vec![
                route(&["r.example", "*.r.example"], CLIENT),
                route(&[], None),
            ]
        };
        let open = table(Scheme::Xmpp, &[], routes());
        assert_eq!(open.serves("r.example"), Some(true));
        assert_eq!(open.serves("x.r.example"), Some(true));
        assert_eq!(open.serves("example"), None);
        let closed = table(Scheme::Xmpp, &["*.d.example"], routes());
        assert_eq!(closed.serves("x.d.example"), Some(true));
        assert_eq!(closed.serves("d.example"), Some(false));
        assert_eq!(closed.serves("R.example"), Some(true));
    }

    #[test]
    fn labels_are_the_names_in_the_settings() {
        let routes = vec![route(&["a", "b", "*.c"], None)];
        let table = table(Scheme::Xmpp, &["b", "*.c", "x.c"], routes);
        assert_eq!(table.domains(), ["b", "*.c", "x.c", "a"]);
        for (host, index) in [("B", 0), ("y.c", 1), ("x.c", 2), ("a", 3), ("c", 4)] {
            assert_eq!(table.domain(Some(host)), index, "{host}");
        }
        assert_eq!(table.domain(None), 4);
    }

    #[test]
    fn labels_are_bounded() {
        let names: Vec<String> = (0..300).map(|n| format!("n{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let table = table(Scheme::Xmpp, &names, Vec::new());
        assert_eq!(table.domains().len(), DOMAINS_MAX);
        assert_eq!(table.domain(Some("n255")), 255);
        assert_eq!(table.domain(Some("n256")), DOMAINS_MAX);
        assert_eq!(table.serves("n299"), Some(true));
    }
}
