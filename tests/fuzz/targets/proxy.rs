//! PROXY headers: no panic, a prefix that never contradicts the whole, and what we write is what we read.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use vestibule::wire::proxy::{
    Certificate, Facts, HEADER_MAX, Origin, Read, Ssl, read, write_v1, write_v2,
};

/// Takes values off the input, or zeros and nothing where it has ended.
struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        match usize::from(self.byte()) {
            0 => None,
            len => Some(self.bytes(2 * len)),
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        self.value()
            .map(|value| std::str::from_utf8(value).unwrap_or("text"))
    }

    fn address(&mut self) -> SocketAddr {
        let wide = self.byte() & 1 == 1;
        let mut octets = [0; 16];
        let given = self.bytes(16);
        octets[..given.len()].copy_from_slice(given);
        let port = u16::from_be_bytes([self.byte(), self.byte()]);
        let ip = if wide {
            IpAddr::V6(Ipv6Addr::from(octets))
        } else {
            let [a, b, c, d, ..] = octets;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        };
        SocketAddr::new(ip, port)
    }
}

fn written(origin: &Origin, header: &[u8]) {
    let canonical = |end: SocketAddr| (end.ip().to_canonical(), end.port());
    for end in 0..header.len() {
        assert_eq!(read(&header[..end]), Ok(Read::NeedMore));
    }
    let Ok(Read::Header {
        origin: Some(told),
        consumed,
    }) = read(header)
    else {
        panic!("{:?}", read(header));
    };
    assert_eq!(consumed, header.len());
    assert_eq!(canonical(told.source), canonical(origin.source));
    assert_eq!(canonical(told.destination), canonical(origin.destination));
    assert_eq!(told.source.is_ipv4(), told.destination.is_ipv4());
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else {
        return;
    };
    if mode & 1 == 0 {
        let whole = read(rest);
        for end in 0..rest.len().min(600) {
            let prefix = read(&rest[..end]);
            assert!(prefix == Ok(Read::NeedMore) || prefix == whole);
        }
        match whole {
            Ok(Read::Header { consumed, .. }) => {
                assert!(consumed <= rest.len() && consumed <= HEADER_MAX);
                assert_eq!(read(&rest[..consumed]), whole);
            }
            Ok(Read::NeedMore) => assert!(rest.len() < HEADER_MAX),
            Err(_) => {}
        }
        return;
    }
    let mut program = Program(rest);
    let origin = Origin {
        source: program.address(),
        destination: program.address(),
    };
    let certificate = Certificate {
        verified: mode & 2 == 2,
        common_name: program.text(),
        this_connection: mode & 4 == 4,
    };
    let ssl = Ssl {
        version: program.text().unwrap_or("TLSv1.3"),
        cipher: program.text().unwrap_or(""),
        certificate: (mode & 8 == 8).then_some(certificate),
    };
    let facts = Facts {
        origin,
        alpn: program.value(),
        authority: program.text(),
        unique_id: program.value(),
        ssl: (mode & 16 == 16).then_some(ssl),
        exporter: program.value(),
        end_point: program.value(),
        crc32c: mode & 32 == 32,
    };
    let mut header = Vec::new();
    write_v2(&facts, &mut header);
    assert!(header.len() < 1200);
    written(&origin, &header);
    header.clear();
    write_v1(&origin, &mut header);
    written(&origin, &header);
});
