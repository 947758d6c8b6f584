//! Chat rooms of five to ten users over WebSocket. Each user says something every 0.9 s, everybody in the room
//! hears it, the speaker too. What is heard must be all that was said, in its order.

use crate::Result;
use crate::client::{Client, Connection, Mode};
use crate::load::{Load, Times};
use crate::report::{Measured, Meter, rounded};
use serde_json::json;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(900);
const MESSAGE: usize = 50;
/// The first bytes of a message: two digits of the speaker's place in the room, eight of the message's number
/// and sixteen of the nanosecond when it was said, both in hexadecimal.
const HEADER: usize = 26;
/// How long the last messages may be under way.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 2000)]
    users: usize,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    measured: Measured,
}

/// What the users count.
struct Chat {
    epoch: Instant,
    /// Messages that must arrive: each said, times those who hear it.
    expected: AtomicU64,
    out_of_order: AtomicU64,
}

/// How many there are in each room; on the generator's thread.
type Rooms = Rc<RefCell<HashMap<u64, u64>>>;

thread_local! {
    static ROOMS: Rooms = Rooms::default();
}

pub fn run(args: &Args) -> Result<()> {
    let client = Client::new(args.measured.addr, Mode::Web, false);
    let meter = Meter::new(&args.measured);
    let base = meter.proxy.pss();
    let chat = Arc::new(Chat {
        epoch: Instant::now(),
        expected: AtomicU64::new(0),
        out_of_order: AtomicU64::new(0),
    });
    let theirs = chat.clone();
    let users = args.users;
    let load = Load::start(users, move |index, load| {
        // Evenly over the period, in an order that has nothing to do with rooms.
        let spread = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let first = PERIOD.mul_f64(spread as f64 / (1 << 24) as f64);
        user(
            client.clone(),
            ROOMS.with(Rc::clone),
            first,
            theirs.clone(),
            load,
        )
    })?;
    let measurement = load.measure(args.times, &meter);
    let memory = meter.proxy.pss();

    let stopped = Instant::now();
    let missing = || {
        chat.expected
            .load(Relaxed)
            .abs_diff(load.done.load(Relaxed))
    };
    while stopped.elapsed() < 2 * PERIOD || (missing() > 0 && stopped.elapsed() < ARRIVAL_TIMEOUT) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let result = json!({
        "users": users,
        "lost": missing(),
        "out_of_order": chat.out_of_order.load(Relaxed),
        "pss_kib": memory,
        "kib_per_conn": rounded((memory as f64 - base as f64) / users as f64),
    });
    load.print("chat", result, &measurement);
    Ok(())
}

async fn user(client: Client, rooms: Rooms, first: Duration, chat: Arc<Chat>, load: Arc<Load>) {
    let connected = async {
        let _turn = load.connecting.acquire().await.map_err(io::Error::other)?;
        let mut connection = client.join("/chat").await?;
        let (room, place) = welcome(&mut connection).await?;
        io::Result::Ok((connection, room, place))
    };
    let (connection, room, place) = match connected.await {
        Ok(connected) => connected,
        Err(e) => return load.fail("connect", &e),
    };
    *rooms.borrow_mut().entry(room).or_default() += 1;
    load.begin().await;
    let listeners = rooms.borrow()[&room];
    if let Err(e) = converse(connection, place, listeners, first, &chat, &load).await {
        load.fail("chat", &e);
    }
}

/// The server's first message: which room, and which place in it.
async fn welcome(connection: &mut Connection) -> io::Result<(u64, usize)> {
    let text = String::from_utf8_lossy(connection.message().await?).into_owned();
    let mut words = text.split(' ').skip(1).map(str::parse::<u64>);
    match (words.next(), words.next()) {
        (Some(Ok(room)), Some(Ok(place))) => Ok((room, place as usize)),
        _ => Err(io::Error::other(format!("no welcome: {text}"))),
    }
}

async fn converse(
    mut connection: Connection,
    place: usize,
    listeners: u64,
    first: Duration,
    chat: &Chat,
    load: &Load,
) -> io::Result<()> {
    let timer = tokio::time::sleep(first);
    tokio::pin!(timer);
    let mut said = 0_u32;
    let mut heard = [0_u32; 16];
    let mut message = [b'.'; MESSAGE];
    let mut talking = true;
    loop {
        tokio::select! {
            biased;
            () = &mut timer, if talking => {
                if load.stopped() {
                    talking = false;
                    continue;
                }
                let next = timer.deadline() + PERIOD;
                timer.as_mut().reset(next);
                let now = chat.epoch.elapsed().as_nanos() as u64;
                message[..HEADER].copy_from_slice(format!("{place:02}{said:08x}{now:016x}").as_bytes());
                said += 1;
                chat.expected.fetch_add(listeners, Relaxed);
                connection.say(&message).await?;
            }
            read = connection.fill() => {
                read?;
                while let Some(message) = connection.next()? {
                    let (from, number, when) = header(message).ok_or_else(|| io::Error::other("not a message"))?;
                    if std::mem::replace(&mut heard[from], number + 1) != number {
                        chat.out_of_order.fetch_add(1, Relaxed);
                    }
                    load.done(chat.epoch + when);
                }
            }
        }
    }
}

/// Who said it (0 to 15), which of theirs it is, and when.
fn header(message: &[u8]) -> Option<(usize, u32, Duration)> {
    let text = std::str::from_utf8(message.get(..HEADER)?)
        .ok()
        .filter(|_| message.len() == MESSAGE)?;
    let from = text[..2].parse::<usize>().ok().filter(|from| *from < 16)?;
    let number = u32::from_str_radix(&text[2..10], 16).ok()?;
    let when = u64::from_str_radix(&text[10..], 16).ok()?;
    Some((from, number, Duration::from_nanos(when)))
}
