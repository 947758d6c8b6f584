//! What is watched of an XMPP stream as it passes: the guard before authentication, and where stanzas begin and end.
//!
//! The bytes themselves are never changed here, held back or copied. A relay without a [`Stream`] pays one branch a
//! message for it; with one, an authenticated stream pays a scan for angle brackets and quotes.

use tokio::time::Instant;

use crate::wire::xmpp::{Answer, Condition, Depth, Initiating, Meter, Receiving};

/// See the module.
pub struct Stream {
    /// Until authenticated.
    guard: Option<Box<Guard>>,
    /// The server's direction: a word of ours may stand between two stanzas only.
    down: Depth,
    /// The client's direction, where elements have a cap.
    up: Option<Cap>,
}

/// A cap on the client's elements, before and after the login.
pub struct Cap {
    /// The client's direction as far as it has passed.
    pub meter: Meter,
    /// Most bytes of an element.
    pub bytes: usize,
}

/// Watches both directions until the server says that the client is authenticated, then is dropped.
pub struct Guard {
    /// The client's direction, with its caps. None: it has none, and only the moment of the login is looked for.
    pub client: Option<Initiating>,
    /// The server's direction.
    pub server: Receiving,
    /// When the client must be authenticated.
    pub deadline: Option<Instant>,
}

impl Stream {
    /// `down` is the server's direction as far as it has passed. Without a guard the stream counts as authenticated; whoever
    /// sets a cap needs one to see the login, since streams begin anew there.
    pub fn new(guard: Option<Box<Guard>>, down: Depth, up: Option<Cap>) -> Self {
        Self { guard, down, up }
    }

    /// Whether SASL success was seen, or nobody looks for it.
    pub fn authenticated(&self) -> bool {
        self.guard.is_none()
    }

    /// When the client must be authenticated, if it is not yet.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.guard.as_ref().and_then(|guard| guard.deadline)
    }

    /// Looks at what the client sends, before it is forwarded.
    ///
    /// # Errors
    /// What the stream error is to say; the bytes must not be forwarded.
    #[inline]
    pub(super) fn sent(&mut self, bytes: &[u8]) -> Result<(), Condition> {
        if let Some(guard) = &mut self.guard
            && let Some(client) = &mut guard.client
        {
            let mut input = bytes;
            while client.read(&mut input)?.is_some() {}
        }
        match &mut self.up {
            None => Ok(()),
            Some(cap) => cap.meter.feed(bytes, cap.bytes),
        }
    }

    /// Looks at what the server sends.
    #[inline]
    pub fn answered(&mut self, bytes: &[u8]) {
        if self.guard.is_none() {
            self.down.feed(bytes);
        } else {
            self.answered_guarded(bytes);
        }
    }

    fn answered_guarded(&mut self, bytes: &[u8]) {
        let Some(guard) = &mut self.guard else {
            return;
        };
        let mut input = bytes;
        loop {
            match guard.server.read(&mut input) {
                Ok(Some(Answer::Success { restart })) => {
                    self.down.feed(&bytes[..bytes.len() - input.len()]);
                    if restart {
                        self.down = Depth::new(0);
                    }
                    self.down.feed(input);
                    self.guard = None;
                    if let Some(cap) = &mut self.up
                        && restart
                    {
                        cap.meter.restart();
                    }
                    return;
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                // Success will not be seen, and a client may have brought this about: servers repeat what they are
                // asked. So a guard stays for ever, and the client is held to its caps and its deadline.
                Err(_) => {
                    if guard.client.is_none() {
                        self.guard = None;
                    }
                    break;
                }
            }
        }
        self.down.feed(bytes);
    }

    /// Whether the server's direction is between two stanzas, as far as it has passed.
    pub(super) fn at_boundary(&self) -> bool {
        self.down.at_boundary()
    }
}
