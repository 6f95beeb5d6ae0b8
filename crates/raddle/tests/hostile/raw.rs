//! `Raw`: a connection that may violate the protocol.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

use raddle_wire::{
    Message, PROTOCOL,
    frame::{self, Decoder, GREETING},
    v1::{self, answer, request::What},
};

/// A TCP connection without TLS.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self(stream)
    }

    /// A link after the greeting.
    pub(crate) fn link(address: &str) -> io::Result<Self> {
        let mut raw = Self::connect(address);
        raw.0.write_all(&GREETING)?;
        let mut greeting = [0; GREETING.len()];
        raw.0.read_exact(&mut greeting)?;
        assert_eq!(greeting, GREETING);
        Ok(raw)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Reads until the worker closes the connection, and returns what it sent.
    pub(crate) fn read_until_closed(mut self) -> Vec<u8> {
        let mut received = Vec::new();
        match self.0.read_to_end(&mut received) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                panic!("the worker does not close the connection")
            }
            // An end of file, or a reset because of unread data.
            _ => received,
        }
    }

    /// The next answer of the worker.
    pub(crate) fn answer(&mut self) -> answer::What {
        let (mut decoder, mut byte, mut answer) = (Decoder::default(), [0], None);
        while answer.is_none() {
            self.0.read_exact(&mut byte).unwrap();
            decoder
                .take(&byte, |frame| {
                    answer = v1::Answer::decode(frame.head).unwrap().what
                })
                .unwrap();
        }
        answer.unwrap()
    }
}

/// An encoded request.
pub(crate) fn request(id: u64, what: What, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put(
        &mut bytes,
        &v1::Request {
            id,
            what: Some(what),
        },
        body,
    );
    bytes
}

/// An encoded call.
pub(crate) fn call(id: u64, routine: &str, arguments: &[u8]) -> Vec<u8> {
    let call = v1::Call {
        protocol: PROTOCOL,
        routine: routine.into(),
        ..v1::Call::default()
    };
    request(id, What::Call(call), arguments)
}

pub(crate) fn ping() -> Vec<u8> {
    request(0, What::Ping(v1::Ping {}), &[])
}

/// A frame header with these fields.
pub(crate) fn header(head: u32, piece: u32, whole: u32) -> Vec<u8> {
    [head, piece, whole].map(u32::to_le_bytes).concat()
}
