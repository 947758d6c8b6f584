//! The PROXY protocol both ways: what a backend is told, by a parser of the tests' own, and who is believed.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::backend::RecordingBackend;
use crate::support::certs::pki;
use crate::support::client::{Offer, OneByteClient};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::xmpp::{
    PlainTalk, Play, Talk, Way, XmppBackend, condition, door, header, open,
};
use crate::support::{End, connect, ports, read_plain, within};

/// What a header says, read by the letter of `proxy-protocol.txt` (sections 2.1 and 2.2).
#[derive(Debug)]
struct Told {
    source: SocketAddr,
    destination: SocketAddr,
    tlvs: Vec<(u8, Vec<u8>)>,
}

impl Told {
    fn by(header: &[u8]) -> Self {
        if header.starts_with(b"PROXY ") {
            Self::by_line(std::str::from_utf8(header).expect("ASCII"))
        } else {
            Self::by_bytes(header)
        }
    }

    fn by_line(line: &str) -> Self {
        let line = line.strip_suffix("\r\n").expect("the end of the line");
        let words: Vec<_> = line.split(' ').collect();
        let [_, family, source, destination, from, to] = words[..] else {
            panic!("{line}");
        };
        let address = |ip: &str, port: &str| -> SocketAddr {
            let ip: IpAddr = ip.parse().expect("an address");
            assert_eq!(ip.is_ipv4(), family == "TCP4", "{line}");
            (ip, port.parse().expect("a port")).into()
        };
        Self {
            source: address(source, from),
            destination: address(destination, to),
            tlvs: vec![],
        }
    }

    fn by_bytes(header: &[u8]) -> Self {
        let (fixed, rest) = header.split_at(16);
        assert_eq!(&fixed[..12], b"\r\n\r\n\0\r\nQUIT\n");
        assert_eq!(fixed[12], 0x21, "version 2, PROXY and never LOCAL");
        assert_eq!(
            usize::from(u16::from_be_bytes([fixed[14], fixed[15]])),
            rest.len()
        );
        let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        let (source, destination, tlvs) = match fixed[13] {
            0x11 => {
                let ip = |at: usize| -> Ipv4Addr {
                    <[u8; 4]>::try_from(&rest[at..at + 4]).expect("4").into()
                };
                let ends = ((ip(0), port(8)).into(), (ip(4), port(10)).into());
                (ends.0, ends.1, &rest[12..])
            }
            0x21 => {
                let ip = |at: usize| -> Ipv6Addr {
                    <[u8; 16]>::try_from(&rest[at..at + 16]).expect("16").into()
                };
                let ends = ((ip(0), port(32)).into(), (ip(16), port(34)).into());
                (ends.0, ends.1, &rest[36..])
            }
            family => panic!("{family:#x}"),
        };
        Self {
            source,
            destination,
            tlvs: fields(tlvs),
        }
    }

    fn tlv(&self, kind: u8) -> Option<&[u8]> {
        let mut found = self.tlvs.iter().filter(|(own, _)| *own == kind);
        let first = found.next();
        assert!(found.next().is_none(), "{kind:#x} came twice");
        first.map(|(_, value)| &value[..])
    }

    fn kinds(&self) -> Vec<u8> {
        self.tlvs.iter().map(|(kind, _)| *kind).collect()
    }
}

fn fields(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut fields = vec![];
    while let [kind, high, low, rest @ ..] = bytes {
        let (value, rest) = rest.split_at(u16::from_be_bytes([*high, *low]).into());
        fields.push((*kind, value.to_vec()));
        bytes = rest;
    }
    assert_eq!(bytes, b"");
    fields
}

/// A version 2 header with this command byte, family and content.
fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).expect("short").to_be_bytes();
    [
        b"\r\n\r\n\0\r\nQUIT\n",
        &[command, family][..],
        &len,
        content,
    ]
    .concat()
}

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.9 40000 5223\r\n";

fn v2_tcp4() -> Vec<u8> {
    let ends = [
        &[192, 0, 2, 7, 198, 51, 100, 9][..],
        &40_000_u16.to_be_bytes(),
        &5223_u16.to_be_bytes(),
        // A field that nobody knows.
        &[0xe9, 0, 2, 1, 2],
    ];
    v2(0x21, 0x11, &ends.concat())
}

/// A stream whose first write goes in one piece behind these bytes.
struct Glued {
    stream: TcpStream,
    before: Vec<u8>,
}

impl AsyncWrite for Glued {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.before.is_empty() {
            return Pin::new(&mut self.stream).poll_write(cx, bytes);
        }
        let both = [&self.before[..], bytes].concat();
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &both))?;
        assert_eq!(sent, both.len(), "a fresh socket takes this much");
        self.before.clear();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Glued {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

/// A connection from another address of the loopback net.
async fn connect_from(ip: [u8; 4], addr: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("socket");
    socket.bind((ip, 0).into()).expect("bind");
    let stream = socket.connect(addr).await.expect("connect");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream
}

#[tokio::test]
async fn a_backend_is_told_both_addresses_in_either_version() {
    within(30, async {
        for way in Way::BOTH {
            for version in ["v1", "v2"] {
                let backend = XmppBackend::start();
                let vestibule = door(way.scheme(), backend.addr(), "")
                    .args(&["--proxy-protocol", version])
                    .start()
                    .await;
                let mut client = way.connect(vestibule.addr()).await;
                client.login().await;
                let told = Told::by(&backend.call().proxy);
                let socket = client.stream.get_ref().0;
                assert_eq!(told.source, socket.local_addr().unwrap());
                assert_eq!(told.destination, vestibule.addr());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn ipv6_is_told_as_ipv6() {
    if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        eprintln!("not tested: this machine has no IPv6");
        return;
    }
    within(30, async {
        for version in ["v1", "v2"] {
            let backend = XmppBackend::start();
            let listen = SocketAddr::from((Ipv6Addr::LOCALHOST, ports::free().port()));
            let file = format!(
                "[xmpp]\nprobe = false\n\
                 [[listener]]\nlisten = 'xmpps://{listen}'\nupstream = 'chat'\n\
                 [[upstream]]\nname = 'chat'\n[[upstream.backend]]\naddress = '{}'\n",
                backend.addr()
            );
            let _vestibule = Setup::default()
                .file(&file)
                .args(&["--proxy-protocol", version])
                .start()
                .await;
            let mut client = Way::Direct.connect(listen).await;
            client.login().await;
            let told = Told::by(&backend.call().proxy);
            let socket = client.stream.get_ref().0;
            assert_eq!(told.source, socket.local_addr().unwrap());
            assert_eq!(told.destination, listen);
        }
    })
    .await;
}

#[tokio::test]
async fn version_2_tells_what_the_clients_tls_is() {
    within(30, async {
        for way in Way::BOTH {
            for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                let backend = XmppBackend::start();
                let vestibule = door(way.scheme(), backend.addr(), "")
                    .args(&["--proxy-protocol", "v2", "--access-log", "-"])
                    .start()
                    .await;
                let mut offer = Offer::default().version(version);
                if way == Way::Direct {
                    offer = offer.alpn(&["xmpp-client"]);
                }
                let mut client = way.connect_as(vestibule.addr(), &offer).await;
                client.login().await;
                let told = Told::by(&backend.call().proxy);
                let alpn = (way == Way::Direct).then_some(&b"xmpp-client"[..]);
                assert_eq!(told.tlv(0x01), alpn);
                assert_eq!(told.tlv(0x02), Some(&b"chat.test"[..]));
                let id = String::from_utf8(told.tlv(0x05).expect("UNIQUE_ID").to_vec()).unwrap();
                let ssl = told.tlv(0x20).expect("SSL");
                assert_eq!(
                    ssl[..5],
                    [1, 0, 0, 0, 1],
                    "TLS, and no certificate verified"
                );
                let parts: HashMap<_, _> = fields(&ssl[5..]).into_iter().collect();
                let connection = client.stream.get_ref().1;
                let suite = connection.negotiated_cipher_suite().unwrap().suite();
                let name = if version.version == rustls::ProtocolVersion::TLSv1_3 {
                    "TLSv1.3"
                } else {
                    "TLSv1.2"
                };
                assert_eq!(parts[&0x21], name.as_bytes());
                let told_suite = String::from_utf8(parts[&0x23].clone()).unwrap();
                assert_eq!(told_suite, format!("{suite:?}").replace("TLS13_", "TLS_"));
                assert_eq!(parts.len(), 2, "{parts:?}");
                assert!(told.tlv(0x03).is_none(), "a checksum nobody asked for");
                assert!(told.tlv(0xe0).is_none() && told.tlv(0xe1).is_none());
                // The id is that of the log.
                client.end().await;
                vestibule.says(&format!(" id={id} listener=")).await;
            }
        }
        // Without a name there is none to tell.
        let backend = XmppBackend::start();
        let vestibule = door("xmpps", backend.addr(), "")
            .args(&["--proxy-protocol", "v2"])
            .start()
            .await;
        let nameless = Offer {
            sni: false,
            ..Offer::default()
        };
        Way::Direct
            .connect_as(vestibule.addr(), &nameless)
            .await
            .login()
            .await;
        assert_eq!(Told::by(&backend.call().proxy).kinds(), [0x05, 0x20]);
    })
    .await;
}

/// A listener whose upstream has these settings.
fn told_by(backend: &XmppBackend, tlvs: &str) -> Setup {
    Setup::default().file(&format!(
        "[xmpp]\nprobe = false\n\
         [[listener]]\nlisten = 'xmpps://@0'\nupstream = 'chat'\n\
         [[upstream]]\nname = 'chat'\nproxy_protocol = 'v2'\nproxy_tlvs = [{tlvs}]\n\
         [[upstream.backend]]\naddress = '{}'\n",
        backend.addr()
    ))
}

#[tokio::test]
async fn version_2_tells_exactly_what_the_settings_name() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = told_by(&backend, "").start().await;
        Way::Direct.connect(vestibule.addr()).await.login().await;
        assert_eq!(Told::by(&backend.call().proxy).kinds(), [0_u8; 0]);

        let backend = XmppBackend::start();
        let vestibule = told_by(&backend, "'crc32c', 'authority'").start().await;
        Way::Direct.connect(vestibule.addr()).await.login().await;
        let mut header = backend.call().proxy;
        let told = Told::by(&header);
        let mut kinds = told.kinds();
        kinds.sort_unstable();
        assert_eq!(kinds, [0x02, 0x03]);
        let sum = told.tlv(0x03).expect("a checksum").to_vec();
        let at = header.windows(4).rposition(|piece| piece == sum).unwrap();
        header[at..at + 4].fill(0);
        assert_eq!(crc32c::crc32c(&header).to_be_bytes()[..], sum);

        let backend = XmppBackend::start();
        let vestibule = told_by(&backend, "'binding'").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.login().await;
        let told = Told::by(&backend.call().proxy);
        let exporter = client.stream.get_ref().1.export_keying_material(
            vec![0; 32],
            b"EXPORTER-Channel-Binding",
            Some(b""),
        );
        assert_eq!(told.tlv(0xe0), Some(&exporter.unwrap()[..]));
        let certificate = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &pki().chat.der);
        assert_eq!(told.tlv(0xe1), Some(certificate.as_ref()));
    })
    .await;
}

/// A listener that believes 127.0.0.1, and tells its backend by version 1.
async fn believing(way: Way, backend: &XmppBackend, settings: &str, args: &[&str]) -> Vestibule {
    door(way.scheme(), backend.addr(), settings)
        .args(&[
            "--accept-proxy-protocol",
            "127.0.0.1",
            "--proxy-protocol",
            "v1",
        ])
        .args(args)
        .start()
        .await
}

#[tokio::test]
async fn a_listed_balancer_is_believed_however_its_header_comes() {
    within(120, async {
        for way in Way::BOTH {
            for before in [V1.to_vec(), v2_tcp4()] {
                let backend = XmppBackend::start();
                let vestibule = believing(way, &backend, "", &[]).await;
                let mut number = 0;
                let mut is_told = async || {
                    let calls = backend.calls();
                    let call = &calls[number];
                    assert_eq!(call.proxy, V1, "{call:?}");
                    number += 1;
                };
                // In single bytes, to the end of what the client itself says first.
                let mut slow = OneByteClient::connect(vestibule.addr(), before.len() + 300).await;
                slow.write_all(&before).await.unwrap();
                login_over(way, slow).await;
                is_told().await;
                // Split in the middle.
                for at in [1, 5, 6, 11, 13, 15, 16, before.len() - 1] {
                    let mut halves = connect(vestibule.addr()).await;
                    halves.write_all(&before[..at]).await.unwrap();
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    let glued = Glued {
                        stream: halves,
                        before: before[at..].to_vec(),
                    };
                    login_over(way, glued).await;
                    is_told().await;
                }
                // Glued to what follows.
                let glued = Glued {
                    stream: connect(vestibule.addr()).await,
                    before,
                };
                login_over(way, glued).await;
                is_told().await;
            }
        }
    })
    .await;
}

/// A whole login over this stream.
async fn login_over(way: Way, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let stream = match way {
        Way::Direct => stream,
        Way::Starttls => {
            let mut client = Talk::new(stream);
            client.say(open()).await;
            client.until("</stream:features>").await;
            client.say(crate::support::xmpp::STARTTLS).await;
            client.until(crate::support::xmpp::PROCEED).await;
            client.stream
        }
    };
    Talk::new(Offer::default().over(stream).await.unwrap())
        .login()
        .await;
}

#[tokio::test]
async fn a_listed_balancer_without_a_sound_header_is_closed() {
    within(60, async {
        let backend = XmppBackend::start();
        let vestibule = believing(Way::Starttls, &backend, "", &[]).await;
        let faults: [(&str, Vec<u8>); 9] = [
            ("XMPP at once", open().into_bytes()),
            (
                "TLS at once",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            ),
            (
                "no such family",
                b"PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n".to_vec(),
            ),
            ("no addresses", b"PROXY TCP4 a b 1 1\r\n".to_vec()),
            (
                "a line without end",
                [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
            ),
            ("version 3", v2(0x31, 0x11, &[0; 12])),
            ("too short for its family", v2(0x21, 0x11, &[0; 11])),
            (
                "a field that is cut",
                v2(0x21, 0x11, &[&[0; 12][..], &[2, 0, 9, 1]].concat()),
            ),
            (
                "a wrong checksum",
                v2(0x21, 0x11, &[&[0; 12][..], &[3, 0, 4, 1, 2, 3, 4]].concat()),
            ),
        ];
        for (what, bytes) in faults {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            let _ = client.try_say(&bytes).await;
            assert_eq!(read_plain(&mut client.stream).await.0, b"", "{what}");
        }
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "opening_failed")],
                9,
            )
            .await;
        vestibule
            .says("no PROXY header from an address in accept_proxy_protocol")
            .await;
        vestibule.is_idle().await;
        assert!(backend.calls().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_header_that_is_late_is_not_waited_for() {
    within(30, async {
        let backend = XmppBackend::start();
        let timeouts = "[timeouts]\nfirst_byte = '400ms'\n";
        for way in Way::BOTH {
            let vestibule = believing(way, &backend, timeouts, &[]).await;
            for said in [&b""[..], &V1[..20], &v2_tcp4()[..20]] {
                let mut client = connect(vestibule.addr()).await;
                client.write_all(said).await.unwrap();
                assert_eq!(read_plain(&mut client).await.0, b"");
            }
            vestibule.is_idle().await;
        }
        assert!(backend.calls().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_balancer_that_speaks_for_itself_is_the_client() {
    within(30, async {
        for way in Way::BOTH {
            for before in [
                v2(0x20, 0, &[]),
                v2(0x20, 0x11, &[9; 12]),
                b"PROXY UNKNOWN\r\n".to_vec(),
            ] {
                let backend = XmppBackend::start();
                let vestibule = believing(way, &backend, "", &[]).await;
                let stream = connect(vestibule.addr()).await;
                let own = stream.local_addr().unwrap();
                login_over(way, Glued { stream, before }).await;
                let told = Told::by(&backend.call().proxy);
                assert_eq!((told.source, told.destination), (own, vestibule.addr()));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_ipv4_address_in_ipv6_is_told_as_ipv4() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = believing(Way::Direct, &backend, "", &[]).await;
        let mapped = |ip: [u8; 4]| [&[0; 10][..], &[0xff; 2], &ip].concat();
        let ends = [
            &mapped([192, 0, 2, 7])[..],
            &mapped([198, 51, 100, 9]),
            &40_000_u16.to_be_bytes(),
            &5223_u16.to_be_bytes(),
        ];
        let glued = Glued {
            stream: connect(vestibule.addr()).await,
            before: v2(0x21, 0x21, &ends.concat()),
        };
        login_over(Way::Direct, glued).await;
        assert_eq!(backend.call().proxy, V1);
    })
    .await;
}

#[tokio::test]
async fn a_header_from_anybody_else_is_garbage() {
    within(30, async {
        let backend = XmppBackend::start();
        for before in [V1.to_vec(), v2_tcp4()] {
            let vestibule = believing(Way::Starttls, &backend, "", &[]).await;
            let mut client = Talk::new(connect_from([127, 0, 0, 2], vestibule.addr()).await);
            client.say([&before, open().as_bytes()].concat()).await;
            assert_eq!(condition(&client.rest().await.0), "not-well-formed");

            let vestibule = believing(Way::Direct, &backend, "", &[]).await;
            let mut client = connect_from([127, 0, 0, 2], vestibule.addr()).await;
            client.write_all(&before).await.unwrap();
            let _ = client.write_all(&[0; 100]).await;
            let (answer, _) = read_plain(&mut client).await;
            assert!(
                matches!(answer[..], [] | [21, 3, _, 0, 2, ..]),
                "{answer:02x?}"
            );
            // Without one it is served as ever, under its own address.
            let client = connect_from([127, 0, 0, 2], vestibule.addr()).await;
            let own = client.local_addr().unwrap();
            login_over(Way::Direct, client).await;
            let calls = backend.calls();
            assert_eq!(Told::by(&calls.last().unwrap().proxy).source, own);
        }
    })
    .await;
}

#[tokio::test]
async fn behind_two_doors_the_server_sees_the_first_client() {
    within(60, async {
        let ca = pki().ca.display().to_string();
        for version in ["v1", "v2"] {
            let backend = XmppBackend::start();
            let inner = door("xmpps", backend.addr(), "")
                .args(&[
                    "--accept-proxy-protocol",
                    "127.0.0.1",
                    "--proxy-protocol",
                    "v2",
                ])
                .start()
                .await;
            let to = format!("tls://localhost:{}", inner.addr().port());
            for scheme in ["xmpps", "auto"] {
                let outer = door(scheme, &to, "")
                    .args(&["--backend-ca", &ca, "--proxy-protocol", version])
                    .start()
                    .await;
                let client = connect_from([127, 0, 0, 9], outer.addr()).await;
                let own = client.local_addr().unwrap();
                login_over(Way::Direct, client).await;
                let calls = backend.calls();
                let told = Told::by(&calls.last().unwrap().proxy);
                assert_eq!((told.source, told.destination), (own, outer.addr()));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_limit_for_an_address_counts_the_client_and_not_the_balancer() {
    within(30, async {
        let backend = XmppBackend::start();
        let limit = ["--max-connections-per-ip", "1"];
        let vestibule = believing(Way::Direct, &backend, "", &limit).await;
        let from = async |last: u8| {
            let line = format!("PROXY TCP4 192.0.2.{last} 198.51.100.9 40000 5223\r\n");
            let glued = Glued {
                stream: connect(vestibule.addr()).await,
                before: line.into_bytes(),
            };
            let mut client = Talk::new(Offer::default().over(glued).await?);
            client.login().await;
            io::Result::Ok(client)
        };
        let first = from(1).await.unwrap();
        let _second = from(2).await.unwrap();
        assert!(from(1).await.is_err(), "a second one of the same client");
        drop(first);
        vestibule
            .metric_becomes("vestibule_connections", &[], 1)
            .await;
        from(1).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn tls_of_any_protocol_and_what_is_passed_through_are_told_too() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("tls", backend.addr(), "")
            .args(&["--proxy-protocol", "v2"])
            .start()
            .await;
        let mut client = Talk::new(Offer::default().connect(vestibule.addr()).await);
        client.say("anything").await;
        let mut server = backend.accept().await;
        let fixed = crate::support::read_exactly(&mut server, 16).await;
        let len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        let rest = crate::support::read_exactly(&mut server, len).await;
        let told = Told::by(&[fixed, rest].concat());
        assert_eq!(told.source, client.stream.get_ref().0.local_addr().unwrap());
        assert_eq!(told.kinds(), [0x02, 0x05, 0x20]);
        assert_eq!(
            crate::support::read_exactly(&mut server, 8).await,
            b"anything"
        );

        let backend =
            XmppBackend::play(Play::offering(crate::support::xmpp::OFFER).tls(&pki().chat));
        let vestibule = door("xmpp-server", backend.addr(), "")
            .args(&["--proxy-protocol", "v2"])
            .start()
            .await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        let first =
            header("to='chat.test' version='1.0'").replace("jabber:client", "jabber:server");
        client.say(&first).await;
        client.until("</stream:features>").await;
        let call = backend.call();
        let told = Told::by(&call.proxy);
        assert_eq!(told.source, client.stream.local_addr().unwrap());
        assert!(told.tlv(0x20).is_none(), "TLS that we know nothing of");
        assert_eq!(
            call.first_read,
            [&call.proxy[..], first.as_bytes()].concat()
        );
        client.end().await;
        assert_eq!(client.rest().await.1, End::Fin);
    })
    .await;
}
