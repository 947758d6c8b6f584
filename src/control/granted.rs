//! What the kernel gives for the socket buffers that were asked for: printed by `check`, and logged once.

use std::io;

use crate::config::Listener;
use crate::config::units::size_text;
use crate::sys::socket;

use super::build;

/// The sockets of one side of a listener.
pub(super) struct Side {
    /// "front" or "back".
    pub(super) name: &'static str,
    recv: Given,
    send: Given,
    /// What may wait unsent; `None`: as much as the send buffer holds.
    unsent: Option<usize>,
}

/// Both sides of a listener, asked of the kernel.
///
/// # Errors
/// As socket(2), setsockopt(2) and getsockopt(2).
pub(super) fn sides(listener: &Listener) -> io::Result<[Side; 2]> {
    let side = |name, settings| -> io::Result<Side> {
        let options = build::socket_options(settings);
        let probe = socket::for_connect(listener.addr, &options)?;
        let (recv, send) = socket::buffers(&probe)?;
        Ok(Side {
            name,
            recv: Given::new(options.recv_buffer, recv),
            send: Given::new(options.send_buffer, send),
            unsent: options.notsent_lowat,
        })
    };
    let (front, back) = (&listener.front, &listener.back);
    Ok([side("front", front)?, side("back", back)?])
}

impl Side {
    pub(super) fn text(&self) -> String {
        let (recv, send) = (self.recv.text(), self.send.text());
        match self.unsent {
            None => format!("receive {recv}, send {send}"),
            Some(most) => format!("receive {recv}, send {send}, unsent {}", bytes_text(most)),
        }
    }

    /// What the kernel has cut down.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let sides = [
            (self.recv, "recv", "rmem_max"),
            (self.send, "send", "wmem_max"),
        ];
        sides.into_iter().filter_map(|(given, way, limit)| {
            given.warning(&format!("{} {way}_buffer", self.name), limit)
        })
    }
}

/// One buffer of a socket, in bytes.
#[derive(Clone, Copy)]
struct Given {
    /// `None`: auto.
    asked: Option<usize>,
    given: usize,
}

impl Given {
    fn new(asked: Option<usize>, given: usize) -> Self {
        Self { asked, given }
    }

    fn capped(self) -> bool {
        self.asked.is_some_and(|asked| self.given / 2 < asked)
    }

    fn text(self) -> String {
        let given = bytes_text(self.given);
        match self.asked {
            None => format!("auto (from {given})"),
            Some(asked) if self.capped() => format!("{} -> {given} (capped)", bytes_text(asked)),
            Some(asked) => format!("{} -> {given}", bytes_text(asked)),
        }
    }

    fn warning(self, what: &str, limit: &str) -> Option<String> {
        let asked = bytes_text(self.asked.filter(|_| self.capped())?);
        let most = bytes_text(self.given / 2);
        Some(format!(
            "{what} {asked} is capped by net.core.{limit} at {most}"
        ))
    }
}

/// [`size_text`], with a unit also where there are only bytes.
fn bytes_text(bytes: usize) -> String {
    let text = size_text(bytes);
    if text.ends_with('B') {
        text
    } else {
        format!("{text}B")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_told_in_one_unit_with_who_capped_them() {
        const KIB: usize = 1024;
        let warning = "front send_buffer 64MiB is capped by net.core.wmem_max at 208KiB";
        for (asked, given, text, told) in [
            (None, 128 * KIB, "auto (from 128KiB)", None),
            (Some(4 * KIB), 8 * KIB, "4KiB -> 8KiB", None),
            (Some(1152), 2304, "1152B -> 2304B", None),
            (
                Some(64 << 20),
                416 * KIB,
                "64MiB -> 416KiB (capped)",
                Some(warning),
            ),
        ] {
            let given = Given::new(asked, given);
            assert_eq!(given.text(), text);
            let found = given.warning("front send_buffer", "wmem_max");
            assert_eq!(found.as_deref(), told);
        }
    }
}
