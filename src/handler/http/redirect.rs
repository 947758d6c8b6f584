//! Plain HTTP: nothing is served, and the way to https is told.

use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, LOCATION, UPGRADE};
use hyper::{Method, Request, Response, StatusCode};

use super::body::Answer;
use super::exchange::Exchange;
use super::headers;
use super::problem::Problem;
use super::visit::Visit;

/// Where everybody expects https.
const HTTPS: u16 = 443;

/// Answers one request.
pub(super) async fn answer(
    visit: Rc<Visit>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let mut exchange = Exchange::begin(&visit, &request);
    let json = Problem::wants_json(request.headers());
    // What comes behind such a head is not looked at.
    let ends = request.headers().contains_key(UPGRADE);
    let mut response = match to_https(&visit, &request) {
        Ok(response) => {
            exchange.redirects(response.status());
            response
        }
        Err(problem) => {
            exchange.refuses(problem);
            problem.answer(json)
        }
    };
    if ends {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    Ok(response.map(|body| body.of(exchange)))
}

/// 301 keeps a GET a GET; 308 keeps anything what it is (RFC 9110 sections 15.4.2 and 15.4.9).
fn to_https(visit: &Visit, request: &Request<Incoming>) -> Result<Response<Answer>, Problem> {
    let host = headers::host(request.headers(), request.uri(), request.version())?;
    if host.is_empty() {
        return Err(Problem::HOST);
    }
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let target = request.uri().path_and_query();
    // `*` is for the server as a whole.
    let target = target.map_or("/", |target| target.as_str());
    let target = if target == "*" { "/" } else { target };
    let location = match visit.rules.https_port {
        HTTPS => format!("https://{host}{target}"),
        port => format!("https://{host}:{port}{target}"),
    };
    let mut response = Response::new(Answer::empty());
    *response.status_mut() = match *request.method() {
        Method::GET | Method::HEAD => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::PERMANENT_REDIRECT,
    };
    let location = HeaderValue::try_from(location).map_err(|_| Problem::BAD_REQUEST)?;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}
