//! The `healthcheck` subcommand: asks the running instance whether it is ready.
//!
//! Made for containers without a shell. It uses nothing but the standard library and starts no runtime,
//! so that it costs next to nothing however often it runs.

use crate::config::AdminAddr;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// For everything: connecting, asking and the whole answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// Most bytes of an answer that are looked at.
const ANSWER_MAX: u64 = 4096;

/// Asks `GET /readyz` of the admin listener at `addr`.
///
/// # Errors
/// A sentence for people, if the instance is not ready, does not answer within two seconds or cannot be
/// reached.
pub fn healthcheck(addr: &AdminAddr) -> Result<(), String> {
    check(addr, DEADLINE)
}

fn check(addr: &AdminAddr, deadline: Duration) -> Result<(), String> {
    let (shown, answer) = match addr.clone() {
        AdminAddr::Tcp(addr) => (
            addr.to_string(),
            ask(deadline, move || TcpStream::connect(addr)),
        ),
        AdminAddr::Unix(path) => {
            let shown = format!("unix:{}", path.display());
            (shown, ask(deadline, move || UnixStream::connect(path)))
        }
    };
    let answer = answer.map_err(|error| {
        format!("no answer from the admin listener at {shown}: {error}; is vestibule running with --admin {shown}?")
    })?;
    verdict(&answer).map_err(|problem| format!("the instance at {shown} {problem}"))
}

/// One exchange on a thread of its own: a single deadline bounds each step of it, even one that the
/// kernel gives no timeout for. The process ends soon after and takes a thread that hangs with it.
fn ask<S, C>(deadline: Duration, connect: C) -> io::Result<Vec<u8>>
where
    S: Read + Write,
    C: FnOnce() -> io::Result<S> + Send + 'static,
{
    let (answered, answer) = mpsc::channel();
    thread::Builder::new()
        .name("healthcheck".into())
        .spawn(move || {
            let exchange = || {
                let mut stream = connect()?;
                stream.write_all(
                    b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                )?;
                let mut bytes = Vec::new();
                stream.take(ANSWER_MAX).read_to_end(&mut bytes)?;
                Ok(bytes)
            };
            // Nobody listens any more once the deadline has passed.
            let _ = answered.send(exchange());
        })?;
    answer.recv_timeout(deadline).unwrap_or_else(|_| {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("nothing within {deadline:?}"),
        ))
    })
}

/// Reads the status code and, for a refusal, the word that goes with it.
fn verdict(answer: &[u8]) -> Result<(), String> {
    let answer = String::from_utf8_lossy(answer);
    let code = answer
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| answer.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse::<u16>().ok());
    match code {
        Some(200) => Ok(()),
        Some(503) => {
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let word: String = body
                .chars()
                .take_while(char::is_ascii_lowercase)
                .take(20)
                .collect();
            Err(format!(
                "is not ready: {}",
                if word.is_empty() {
                    "unavailable"
                } else {
                    &word
                }
            ))
        }
        Some(code) => Err(format!(
            "answered with status {code}; is it an admin listener?"
        )),
        None => Err("did not answer in HTTP; is it an admin listener?".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers one connection with `answer` once it has read a whole request.
    fn answering(answer: &'static [u8]) -> AdminAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(answer).unwrap();
        });
        AdminAddr::Tcp(addr)
    }

    #[test]
    fn a_ready_instance_passes() {
        let addr = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready\n");
        assert_eq!(healthcheck(&addr), Ok(()));
    }

    #[test]
    fn a_draining_instance_fails_and_says_so() {
        let addr = answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\ndraining\n");
        let problem = healthcheck(&addr).unwrap_err();
        assert!(problem.ends_with("is not ready: draining"), "{problem}");
    }

    #[test]
    fn something_else_on_the_port_fails() {
        for (answer, part) in [
            (&b"HTTP/1.1 404 Not Found\r\n\r\n"[..], "status 404"),
            (b"220 mail.example ESMTP\r\n", "did not answer in HTTP"),
            (b"HTTP/1.1 2", "did not answer in HTTP"),
            (b"", "did not answer in HTTP"),
        ] {
            let problem = healthcheck(&answering(answer)).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn an_instance_that_is_away_fails_and_names_the_flag() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let problem = healthcheck(&AdminAddr::Tcp(addr)).unwrap_err();
        assert!(problem.contains(&format!("--admin {addr}")), "{problem}");
        let problem = healthcheck(&AdminAddr::Unix("/nowhere/admin.sock".into())).unwrap_err();
        assert!(
            problem.contains("--admin unix:/nowhere/admin.sock"),
            "{problem}"
        );
    }

    #[test]
    fn an_instance_that_hangs_fails_at_the_deadline() {
        // The kernel accepts the connection; nobody ever answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = AdminAddr::Tcp(listener.local_addr().unwrap());
        let problem = check(&addr, Duration::from_millis(20)).unwrap_err();
        assert!(problem.contains("nothing within 20ms"), "{problem}");
    }
}
