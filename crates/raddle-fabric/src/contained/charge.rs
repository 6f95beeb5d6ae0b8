//! What a leash is told on its standard input: a length, what to run and how, and then the input of the command itself. Not as arguments or
//! environment, where others could read it and the system would bound it.

#[cfg(any(feature = "docker", test))]
use std::io::{self, Read};

use raddle_core::{Limits, Tid};
use raddle_exec::contained::Begin;
use serde::{Deserialize, Serialize};

/// One attempt to be run in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Charge {
    /// The task.
    pub(crate) tid: Tid,
    /// The number of the attempt.
    pub(crate) attempt: u32,
    /// Its name, for the title.
    pub(crate) name: String,
    /// What the container is made from: the worker's choice, never the task's.
    pub(crate) image: String,
    /// Whether it is in the network of its host, or in none.
    pub(crate) is_in_host_network: bool,
    /// What it may use.
    pub(crate) limits: Limits,
    /// What to run.
    pub(crate) begin: Begin,
}

/// As long as what a runner can be told.
#[cfg(any(feature = "docker", test))]
const LONGEST: u32 = 16 << 20;

impl Charge {
    /// The standard input of the leash.
    pub(crate) fn with_input(&self, input: Option<Vec<u8>>) -> serde_json::Result<Vec<u8>> {
        let said = serde_json::to_vec(self)?;
        let mut all = (said.len() as u32).to_le_bytes().to_vec();
        all.extend(said);
        all.extend(input.unwrap_or_default());
        Ok(all)
    }

    /// Reads it, and leaves the input of the command.
    #[cfg(any(feature = "docker", test))]
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut len = [0; 4];
        from.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len);
        if len > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut said = Vec::new();
        from.take(len.into()).read_to_end(&mut said)?;
        serde_json::from_slice(&said).map_err(Into::into)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn charge() -> Charge {
        Charge {
            tid: "1794800817069096960".parse().unwrap(),
            attempt: 2,
            name: "sh".into(),
            image: "some/image:1".into(),
            is_in_host_network: false,
            limits: Limits::default(),
            begin: Begin {
                argv: vec!["sh".into()],
                env: vec![("KEY".into(), "hidden".into())],
                has_input: true,
                max_fds: 9,
            },
        }
    }

    #[test]
    fn what_follows_is_the_input_of_the_command() {
        let said = charge().with_input(Some(b"in\xff".to_vec())).unwrap();
        let mut from = &said[..];
        assert_eq!(Charge::read(&mut from).unwrap(), charge());
        assert_eq!(from, b"in\xff");
    }

    #[test]
    fn what_is_no_charge_is_refused() {
        for nonsense in [&b""[..], b"\x02\0\0\0{}", b"\xff\xff\xff\xff{", b"\x05\0\0\0{}"] {
            assert!(Charge::read(&mut &nonsense[..]).is_err(), "{nonsense:?}");
        }
    }
}
