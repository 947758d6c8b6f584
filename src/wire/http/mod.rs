//! HTTP, as far as it can be judged in passing: where one message ends and the next begins (RFC 9112), and HTTP/2 frames
//! that bring nothing (RFC 9113).
//!
//! The parser proper comes behind and forgives: bare LF as the end of a line, Content-Length beside Transfer-Encoding,
//! any target. Two readers that forgive differently see different messages in the same bytes, and the difference is
//! where requests are smuggled. [`Framing`] therefore looks at the bytes of HTTP/1.1 before the parser does and lets
//! only pass what can be read in one way. [`Frames`] does so for HTTP/2, where lengths are plain and floods are the
//! trouble. Both change nothing and keep no bytes; what headers mean is for others.

mod fault;
mod frames;
mod framing;

pub use fault::{Fault, Violation};
pub use frames::{Flood, Frames, GOAWAY_LEN, goaway};
pub use framing::{Caps, Framing};
