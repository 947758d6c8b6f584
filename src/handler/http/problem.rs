//! Answers of our own: short and plain, and never in the place of a backend's.

use bytes::Bytes;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{Response, StatusCode};

use crate::wire::http::Fault;

use super::body::Answer;

/// Why a request is not forwarded, or has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// What the client is told.
    pub(super) status: StatusCode,
    /// One word for metrics and the access log.
    pub(super) reason: &'static str,
    /// One line for people.
    pub(super) text: &'static str,
    /// Whether the connection cannot be used again.
    pub(super) close: bool,
}

macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident: $status:ident $reason:literal $text:literal $(, $close:ident)?;)+) => {
        impl Problem {
            $($(#[$doc])* pub(super) const $name: Self = Self {
                status: StatusCode::$status,
                reason: $reason,
                text: $text,
                close: problems!(@close $($close)?),
            };)+
        }
    };
    (@close) => { false };
    (@close close) => { true };
}

problems! {
    /// A request that could be read in more than one way.
    BAD_REQUEST: BAD_REQUEST "bad_request" "the request is malformed", close;
    /// More header fields than allowed.
    HEADERS: REQUEST_HEADER_FIELDS_TOO_LARGE "headers" "the request has too many header fields", close;
    /// No host that could be served.
    HOST: BAD_REQUEST "host" "the request names no host, or two";
    /// CONNECT for anything but a WebSocket.
    CONNECT: NOT_IMPLEMENTED "connect" "this protocol is not spoken here";
    /// A version of WebSocket that nobody speaks any more (RFC 6455 section 4.4).
    WEBSOCKET_VERSION: UPGRADE_REQUIRED "websocket_version" "only version 13 of WebSocket is spoken here", close;
    /// No route.
    NO_ROUTE: NOT_FOUND "no_route" "no route leads to this address";
    /// The connection is for another name.
    MISDIRECTED: MISDIRECTED_REQUEST "misdirected" "this connection is for another host name";
    /// A body above the limit.
    TOO_LARGE: PAYLOAD_TOO_LARGE "body_size" "the request's body is too large", close;
    /// A body that does not come.
    BODY_TIMEOUT: REQUEST_TIMEOUT "request_body_timeout" "the request's body did not come in time", close;
    /// A head that does not come.
    HEAD_TIMEOUT: REQUEST_TIMEOUT "request_timeout" "the request did not come in time", close;
    /// No backend can be connected to.
    NO_BACKEND: BAD_GATEWAY "no_backend" "the server behind this door cannot be reached";
    /// A backend has closed without an answer.
    BACKEND_GONE: BAD_GATEWAY "backend_gone" "the server behind this door closed without an answer";
    /// A backend's answer makes no sense.
    BAD_ANSWER: BAD_GATEWAY "bad_answer" "the server behind this door gave an answer that makes no sense";
    /// A backend does not answer.
    ANSWER_TIMEOUT: GATEWAY_TIMEOUT "answer_timeout" "the server behind this door did not answer in time";
    /// A backend does not say whether it upgrades.
    UPGRADE_TIMEOUT: GATEWAY_TIMEOUT "upgrade_timeout" "the server behind this door did not answer the upgrade in time";
}

impl Problem {
    /// A request that breaks a rule of framing.
    pub(super) fn refused(fault: Fault) -> Self {
        Self {
            status: StatusCode::from_u16(fault.status()).unwrap_or(StatusCode::BAD_REQUEST),
            reason: fault.name(),
            text: match fault.status() {
                405 => "this method is not served here",
                414 => "the request line is too long",
                431 => "the request's head is too large",
                501 => "this transfer coding is not spoken here",
                505 => "this version of HTTP is not spoken here",
                _ => Self::BAD_REQUEST.text,
            },
            ..Self::BAD_REQUEST
        }
    }

    /// Whether a client would rather have JSON.
    pub(super) fn wants_json(headers: &HeaderMap) -> bool {
        let accepts = headers.get(ACCEPT).map(HeaderValue::as_bytes);
        accepts.is_some_and(|accepts| memchr::memmem::find(accepts, b"application/json").is_some())
    }

    fn body(&self, json: bool) -> String {
        if json {
            let (status, reason, text) = (self.status.as_u16(), self.reason, self.text);
            format!("{{\"status\":{status},\"reason\":\"{reason}\",\"text\":\"{text}\"}}\n")
        } else {
            format!("{} {}\n", self.status.as_u16(), self.text)
        }
    }

    /// The answer.
    pub(super) fn answer(&self, json: bool) -> Response<Answer> {
        let mut response = Response::new(Answer::text(Bytes::from(self.body(json))));
        *response.status_mut() = self.status;
        let kind = if json {
            "application/json"
        } else {
            "text/plain; charset=utf-8"
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if self.status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The same as bytes of HTTP/1.1, where hyper cannot say it any more.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let body = self.body(false);
        let reason = self.status.canonical_reason().unwrap_or_default();
        let (status, len) = (self.status.as_u16(), body.len());
        format!(
            "HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\n\
             content-length: {len}\r\nconnection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}
