//! What looks at the bytes of HTTP as they pass, before hyper has them and after.

use std::cell::Cell;
use std::rc::Rc;

use tokio::time::Instant;

use crate::endpoint::transport::Look;
use crate::wire::http::{Caps, Fault, Flood, Frames, Framing};

/// A client's connection.
pub(super) enum Front {
    /// HTTP/1.1.
    One {
        /// Where its messages begin and end.
        framing: Framing,
        /// What was wrong with them.
        fault: Option<Fault>,
    },
    /// HTTP/2.
    Two(Box<Two>),
}

/// Both directions of HTTP/2.
pub(super) struct Two {
    client: Frames,
    server: Frames,
    begun: Instant,
    flood: Option<Flood>,
}

impl Front {
    pub(super) fn one(caps: Caps) -> Self {
        Self::One {
            framing: Framing::requests(caps),
            fault: None,
        }
    }

    pub(super) fn two() -> Self {
        Self::Two(Box::new(Two {
            client: Frames::client(),
            server: Frames::server(),
            begun: Instant::now(),
            flood: None,
        }))
    }

    /// Whether it is HTTP/1.1.
    pub(super) fn is_one(&self) -> bool {
        matches!(self, Self::One { .. })
    }

    /// Whether the head of a request has begun and not ended.
    pub(super) fn in_head(&self) -> bool {
        match self {
            Self::One { framing, .. } => framing.in_head(),
            Self::Two(_) => false,
        }
    }

    /// What was wrong with a request, and whether it was in its head.
    pub(super) fn fault(&self) -> Option<(Fault, bool)> {
        match self {
            Self::One { framing, fault } => fault.map(|fault| (fault, framing.broke_in_head())),
            Self::Two(_) => None,
        }
    }

    /// What there was too much of.
    pub(super) fn flood(&self) -> Option<Flood> {
        match self {
            Self::One { .. } => None,
            Self::Two(two) => two.flood,
        }
    }

    /// The last stream that a client has opened, if a frame of ours may stand where we are.
    pub(super) fn last_stream(&self) -> Option<u32> {
        match self {
            Self::One { .. } => None,
            Self::Two(two) => two.server.at_boundary().then(|| two.client.last_stream()),
        }
    }
}

impl Look for Front {
    fn received(&mut self, bytes: &[u8]) -> Result<(), usize> {
        match self {
            Self::One { framing, fault } => framing.look(bytes).map_err(|violation| {
                *fault = Some(violation.kind);
                violation.before
            }),
            Self::Two(two) => {
                let now = two.begun.elapsed().as_millis() as u64;
                two.client.look(bytes, now).map_err(|flood| {
                    two.flood = Some(flood);
                    0
                })
            }
        }
    }

    fn sent(&mut self, bytes: &[u8]) {
        if let Self::Two(two) = self {
            let now = two.begun.elapsed().as_millis() as u64;
            if let Err(flood) = two.server.look(bytes, now) {
                two.flood.get_or_insert(flood);
            }
            two.client.credit(two.server.data());
        }
    }
}

/// What is not looked at: what has left HTTP, and backends of HTTP/2, whose frames hyper judges.
pub(super) struct Blind;

impl Look for Blind {
    fn received(&mut self, _: &[u8]) -> Result<(), usize> {
        Ok(())
    }

    fn sent(&mut self, _: &[u8]) {}
}

/// A backend's connection of HTTP/1.1.
pub(super) struct Back {
    framing: Framing,
    fault: BackFault,
}

/// What was wrong with an answer, known also when its connection is gone.
pub(super) type BackFault = Rc<Cell<Option<Fault>>>;

impl Back {
    pub(super) fn new(caps: Caps, fault: BackFault) -> Self {
        Self {
            framing: Framing::answers(caps),
            fault,
        }
    }

    /// A request goes out.
    pub(super) fn expect(&mut self, head: bool, upgrade: bool) {
        self.framing.expect(head, upgrade);
    }
}

impl Look for Back {
    fn received(&mut self, bytes: &[u8]) -> Result<(), usize> {
        self.framing.look(bytes).map_err(|violation| {
            self.fault.set(Some(violation.kind));
            violation.before
        })
    }

    fn sent(&mut self, _: &[u8]) {}
}
