//! From facts about a connection to an upstream.
//!
//! A [`RouteTable`] is what the settings say about one listener, in the form that connections ask it in: a look-up by
//! host name, then the few routes that have no name. It never changes; a reload builds another one.

mod name;

use std::collections::HashSet;

use crate::config::{Config, ListenerId, Protocol, Scheme, TlsMode, UpstreamId};

use name::Names;

/// Where a connection goes, and where its TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Whose backends serve it.
    pub upstream: UpstreamId,
    /// Here or there.
    pub tls: TlsMode,
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
}

#[derive(Debug)]
struct Entry {
    protocol: Option<Protocol>,
    choice: Choice,
}

impl RouteTable {
    /// The routes of this listener, which must be one of `config`.
    pub fn new(config: &Config, listener: ListenerId) -> Self {
        let here = &config.listeners[usize::from(listener.0)];
        let applies =
            |listeners: &[ListenerId]| listeners.is_empty() || listeners.contains(&listener);
        let mut routes = Vec::new();
        let mut by_host = Names::default();
        let mut any_host = Vec::new();
        let mut named: Vec<&String> = here.domains.iter().collect();
        for route in config
            .routes
            .iter()
            .filter(|route| applies(&route.listeners))
        {
            let index = routes.len();
            routes.push(Entry {
                protocol: route.protocol,
                choice: Choice {
                    upstream: route.upstream,
                    tls: route.tls.unwrap_or(here.tls),
                },
            });
            for host in &route.hosts {
                by_host.add(host, index);
            }
            if route.hosts.is_empty() {
                any_host.push(index);
            }
            named.extend(&route.hosts);
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
        }
    }

    /// The first route that fits, else the listener's own upstream.
    ///
    /// `host` is the SNI name, else the stream's `to`; `protocol` what is spoken, as far as known. What is not known fits
    /// only a route that does not ask. `None`: refuse; on a listener of scheme `auto` servers are served only by routes
    /// that name them.
    pub fn choose(&self, host: Option<&str>, protocol: Option<Protocol>) -> Option<Choice> {
        let by_route_only = self.scheme == Scheme::Auto && protocol == Some(Protocol::XmppServer);
        let fits = |index: &usize| match self.routes[*index].protocol {
            None => !by_route_only,
            asked => asked == protocol,
        };
        let by_host = host.into_iter().flat_map(|host| self.by_host.get(host));
        // Some hundred routes without hosts would be gone through one by one; nobody has use for more than a few.
        let any_host = self.any_host.iter().copied().find(|index| fits(index));
        match by_host.filter(fits).chain(any_host).min() {
            Some(index) => Some(self.routes[index].choice),
            None => (!by_route_only).then_some(self.default),
        }
    }

    /// Whether the settings have this host served here. `None`: they do not say, and the certificates decide.
    pub fn serves(&self, host: &str) -> Option<bool> {
        if self.by_domain.get(host).next().is_some() {
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
            Scheme::Tls | Scheme::Xmpp | Scheme::Xmpps => false,
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

/// Most names that become metric labels.
const DOMAINS_MAX: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Route;
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
