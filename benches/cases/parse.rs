//! What reads the words of the protocols: first bytes, hello, HTTP head, XMPP stanza.

use std::hint::black_box;

use rustls::ClientConnection;
use vestibule::wire::hello::Hello;
use vestibule::wire::http::{Caps, Framing};
use vestibule::wire::sniff::sniff;
use vestibule::wire::xmpp::Depth;

use super::{Case, Entry, records};

/// A function of the bytes.
struct Reading<R> {
    bytes: fn() -> Vec<u8>,
    read: R,
}

impl<R: FnMut(&[u8])> Case for Reading<R> {
    fn input(&mut self) -> Vec<u8> {
        (self.bytes)()
    }

    fn run(&mut self, input: &[u8]) {
        (self.read)(black_box(input));
    }
}

const REQUEST: &[u8] = b"GET /upload/7f3c2a/holiday.jpg HTTP/1.1\r\n\
    Host: chat.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5\r\n\
    Accept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Referer: https://chat.example.org/\r\n\
    Cookie: session=01234567890123456789012345678901\r\n\
    If-None-Match: \"5f2b-62d1c8a0\"\r\n\
    Connection: keep-alive\r\n\r\n";

const HEADER: &[u8] = b"<?xml version='1.0'?><stream:stream to='chat.example.org' version='1.0' \
    xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'>";

const STANZA: &[u8] =
    b"<message to='juliet@chat.example.org/balcony' type='chat' id='m1' xml:lang='en'>\
    <body>Art thou not Romeo, and a Montague?</body><thread>e0ffe42b28561960c6b12b944a092794b9683a38</thread>\
    <request xmlns='urn:xmpp:receipts'/><markable xmlns='urn:xmpp:chat-markers:0'/></message>";

/// A ClientHello of rustls, which shuffles its extensions each time.
fn client_hello() -> Vec<u8> {
    let config = records::client_config(records::Suite::Aes128);
    let name = "chat.example.org".try_into().expect("a name");
    let mut client = ClientConnection::new(config, name).expect("a client");
    let mut wire = Vec::new();
    client.write_tls(&mut wire).expect("a vector takes all");
    wire
}

fn framing() -> Framing {
    Framing::requests(Caps {
        head_size: 32 << 10,
        headers: 100,
        underscores: false,
    })
}

fn reading<R: FnMut(&[u8]) + 'static>(
    name: &str,
    bytes: fn() -> Vec<u8>,
    read: impl Fn() -> R + 'static,
) -> Entry {
    Entry::new(name, move || Reading {
        bytes,
        read: read(),
    })
}

fn sniffing(bytes: &[u8]) {
    black_box(sniff(bytes));
}

pub(crate) fn entries() -> Vec<Entry> {
    vec![
        reading("sniff/tls", client_hello, || sniffing),
        reading("sniff/http", || REQUEST.to_vec(), || sniffing),
        reading("sniff/xmpp", || HEADER.to_vec(), || sniffing),
        reading("parse/client-hello", client_hello, || {
            |bytes: &[u8]| {
                black_box(Hello::parse(bytes)).expect("a hello");
            }
        }),
        reading(
            "parse/http-head",
            || REQUEST.to_vec(),
            || {
                let mut framing = framing();
                move |bytes: &[u8]| {
                    framing.look(bytes).expect("a request");
                }
            },
        ),
        reading(
            "parse/xmpp-stanza",
            || STANZA.to_vec(),
            || {
                let mut depth = Depth::new(1);
                move |bytes: &[u8]| depth.feed(bytes)
            },
        ),
    ]
}
