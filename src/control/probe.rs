//! Asks XMPP backends at start what they offer, so that a server that is not set up for a front door is found
//! before the first client finds it.
//!
//! Each backend gets what a client's connection would bring: a whole PROXY header, if it wants one, and a stream header,
//! in one write. (ejabberd accepts nobody else while it waits for a PROXY header.) One that cannot be reached is asked
//! again until it can.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::config::{
    BackStarttls, Config, Listener, ListenerId, Protocol, ProxyTlv, Scheme, TlsMode, UpstreamId,
};
use crate::endpoint::dialogue::{Dialogue, Heard};
use crate::handler::{NO_FEATURES, WAY_OUT};
use crate::pool::{BufferPool, Magazine};
use crate::route::RouteTable;
use crate::upstream::dial::{DialTerms, Preface, connect};
use crate::upstream::{Backend, Upstream};
use crate::wire::proxy;
use crate::wire::xmpp::{Answer, CLOSE, Features, Receiving, Role, header};

use super::build;

/// How long a backend may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Most bytes of an answer.
const ANSWER_MAX: usize = 64 * 1024;
/// Pauses between questions to a backend that cannot be reached, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Most domains that one backend is asked for.
const DOMAINS_MAX: usize = 16;

/// A backend and what it is asked.
struct Question {
    upstream: Arc<Upstream>,
    backend: usize,
    role: Role,
    domain: String,
    /// Whether the settings say that it is served, and not only a certificate.
    sure: bool,
    /// Whom a PROXY header names: an address of our own.
    own: SocketAddr,
    dial: DialTerms,
    element_size: usize,
}

/// What is odd about an answer, and what to do about it.
enum Finding {
    /// Clients cannot be served.
    Fault(String),
    /// They can, but.
    Remark(String),
}

/// Asks every backend that XMPP streams are sent to whose TLS ends here. Ends when all have answered.
pub(super) async fn probe(
    config: &Config,
    certified: &[String],
    upstreams: &[Arc<Upstream>],
    pool: &BufferPool,
) {
    if !config.xmpp.probe {
        return;
    }
    let magazine = pool.magazine();
    let mut open: Vec<Question> = questions(config, certified, upstreams);
    let mut pause = PAUSES.0;
    let mut first = true;
    while !open.is_empty() {
        let mut unanswered = Vec::new();
        for question in open {
            match ask(&question, &magazine).await {
                Ok(findings) => question.tell(findings),
                Err(error) => {
                    if first {
                        question.tell_unreached(&error);
                    }
                    unanswered.push(question);
                }
            }
        }
        open = unanswered;
        first = false;
        if !open.is_empty() {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

fn questions(config: &Config, certified: &[String], upstreams: &[Arc<Upstream>]) -> Vec<Question> {
    let mut seen = BTreeSet::new();
    let mut questions = Vec::new();
    for (at, listener) in config.listeners.iter().enumerate() {
        let table = RouteTable::new(config, ListenerId(at as u16));
        // A certificate may name hosts that have nothing to do with chat.
        let sure = !table.domains().is_empty();
        let mut names: Vec<&String> = if sure {
            table.domains().iter().collect()
        } else {
            certified.iter().collect()
        };
        names.retain(|name| !name.starts_with('*'));
        for role in roles(listener, &table) {
            let protocol = match role {
                Role::Client => Protocol::XmppClient,
                Role::Server => Protocol::XmppServer,
            };
            for name in names.iter().take(DOMAINS_MAX) {
                let Some(choice) = table.choose(Some(name), Some(protocol)) else {
                    continue;
                };
                let UpstreamId(id) = choice.upstream;
                let Some(upstream) = upstreams.get(usize::from(id)) else {
                    continue;
                };
                let served = table.serves(name) != Some(false);
                if choice.tls == TlsMode::Passthrough || !served {
                    continue;
                }
                for backend in 0..upstream.backends.len() {
                    if seen.insert((id, backend, role as u8, (*name).clone())) {
                        questions.push(Question {
                            upstream: Arc::clone(upstream),
                            backend,
                            role,
                            domain: (*name).clone(),
                            sure,
                            own: own(listener.addr),
                            dial: DialTerms {
                                options: build::socket_options(&listener.back),
                                timeout: config.timeouts.connect,
                            },
                            element_size: config.xmpp.element_size,
                        });
                    }
                }
            }
        }
    }
    questions
}

fn roles(listener: &Listener, table: &RouteTable) -> Vec<Role> {
    match listener.scheme {
        Scheme::Tls | Scheme::Https | Scheme::Http => Vec::new(),
        Scheme::Xmpp | Scheme::Xmpps => vec![Role::Client],
        Scheme::XmppServer | Scheme::XmppsServer => vec![Role::Server],
        Scheme::Auto if table.offers_servers() => vec![Role::Client, Role::Server],
        Scheme::Auto => vec![Role::Client],
    }
}

/// An address of ours that may stand in a PROXY header.
fn own(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

/// One conversation, up to the features.
async fn ask(question: &Question, pool: &Magazine) -> Result<Vec<Finding>, String> {
    let origin = proxy::Origin {
        source: question.own,
        destination: question.own,
    };
    let told = question.upstream.link.proxy_header(&proxy::Facts {
        origin,
        alpn: None,
        authority: Some(&question.domain),
        unique_id: Some(b"probe"),
        ssl: Some(proxy::Ssl {
            version: "TLSv1.3",
            cipher: "TLS_AES_128_GCM_SHA256",
            certificate: None,
        }),
        exporter: None,
        end_point: None,
        crc32c: false,
    });
    // Without `from`: a server has nobody to be but itself here, and would not have that.
    let first = header(question.role, None, Some(&question.domain), None, "en");
    let preface = Preface {
        header: &told,
        first: first.as_bytes(),
        alpn: &[],
    };
    let connected = connect(
        &question.backend().target,
        &question.dial.options,
        preface,
        pool,
    );
    let limit = if question.dial.timeout.is_zero() {
        ANSWER_WAIT
    } else {
        question.dial.timeout
    };
    let connected = timeout(limit, connected).await;
    let (endpoint, rest) = connected
        .map_err(|_| "no connection in time".to_owned())?
        .map_err(|error| error.to_string())?;
    let mut back = Dialogue::new(endpoint, rest);
    let findings = timeout(ANSWER_WAIT, read_answer(&mut back, question, pool)).await;
    // A stream of our own is closed in order, so that the server logs nothing odd.
    let _ = timeout(ANSWER_WAIT, async {
        if back.write(CLOSE.as_bytes()).await.is_ok() {
            back.finish().await;
        }
    })
    .await;
    findings.unwrap_or_else(|_| Err("no features in time".to_owned()))
}

async fn read_answer(
    back: &mut Dialogue,
    question: &Question,
    pool: &Magazine,
) -> Result<Vec<Finding>, String> {
    let mut server = Receiving::new(ANSWER_MAX);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match back.read(pool, &mut bytes).await {
            Ok(Heard::Bytes) => {}
            Ok(Heard::End | Heard::Truncated) => return Err("closed without features".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let mut input = &bytes[..];
        loop {
            match server.read(&mut input) {
                Ok(None) => break,
                Ok(Some(Answer::Features(features))) => return Ok(question.judge(&features)),
                Ok(Some(Answer::Error { condition, text })) => {
                    let text = text.unwrap_or_default();
                    return Ok(question
                        .judge_error(&condition, &text)
                        .into_iter()
                        .collect());
                }
                Ok(Some(Answer::End)) => return Err("closed without features".to_owned()),
                Ok(Some(_)) => {}
                Err(error) => {
                    return Ok(vec![Finding::Fault(format!(
                        "its answer to a stream header: {error}"
                    ))]);
                }
            }
        }
    }
}

impl Question {
    fn backend(&self) -> &Backend {
        &self.upstream.backends[self.backend]
    }

    fn judge(&self, features: &Features) -> Vec<Finding> {
        let link = &self.upstream.link;
        let mut findings = Vec::new();
        match (&features.starttls, link.starttls) {
            (Some(offer), BackStarttls::Strip | BackStarttls::Keep) if offer.required => {
                findings.push(Finding::Fault(WAY_OUT.to_owned()));
            }
            (Some(_), BackStarttls::Strip) => findings.push(Finding::Remark(
                "it offers STARTTLS to clients that are inside TLS already; the offer is taken out"
                    .to_owned(),
            )),
            (None, BackStarttls::Speak) => findings.push(Finding::Fault(
                "it does not offer STARTTLS, which starttls = \"speak\" needs; write \"strip\""
                    .to_owned(),
            )),
            _ => {}
        }
        let sure = features.starttls.is_none() && self.role == Role::Client;
        if sure && features.mechanisms.is_empty() {
            findings.push(Finding::Fault(
                "it offers no way to log in; Prosody: c2s_require_encryption = false, or mod_vestibule".to_owned(),
            ));
        }
        let bound = features
            .mechanisms
            .iter()
            .any(|name| name.ends_with("-PLUS"));
        if bound && !link.tlvs.contains(&ProxyTlv::Binding) {
            findings.push(Finding::Remark(
                "it offers channel binding, which cannot match where TLS ends here; clients may fail to log in"
                    .to_owned(),
            ));
        }
        if let Some(max) = features.max_bytes
            && self.element_size > 0
            && max > self.element_size as u64
        {
            findings.push(Finding::Remark(format!(
                "it says that it takes elements of {max} bytes, but xmpp.element_size lets {} through",
                self.element_size
            )));
        }
        findings
    }

    fn judge_error(&self, condition: &str, text: &str) -> Option<Finding> {
        if text.contains(NO_FEATURES) {
            return Some(Finding::Fault(WAY_OUT.to_owned()));
        }
        if condition == "host-unknown" && !self.sure {
            return None;
        }
        let words = if text.is_empty() { "" } else { ": " };
        Some(Finding::Fault(format!(
            "it answers a stream with {condition}{words}{text}; does it serve this domain?"
        )))
    }

    fn tell(&self, findings: Vec<Finding>) {
        let (upstream, backend) = (self.upstream.name.as_str(), self.backend().name.as_str());
        let domain = self.domain.as_str();
        for finding in findings {
            match finding {
                Finding::Fault(what) => {
                    tracing::error!(
                        upstream,
                        backend,
                        domain,
                        "the backend cannot serve streams: {what}"
                    );
                }
                Finding::Remark(what) => {
                    tracing::warn!(upstream, backend, domain, "about the backend: {what}");
                }
            }
        }
    }

    fn tell_unreached(&self, error: &str) {
        let (upstream, backend) = (self.upstream.name.as_str(), self.backend().name.as_str());
        tracing::warn!(
            upstream,
            backend,
            domain = self.domain.as_str(),
            "the backend does not answer yet, it is asked again: {error}"
        );
    }
}
