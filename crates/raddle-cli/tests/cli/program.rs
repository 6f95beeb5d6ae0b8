//! The program file itself.

use std::fs;

/// `e_type` of an ELF header, and its value for a program that is loaded at a random address.
const E_TYPE: usize = 16;
const ET_DYN: u16 = 3;

#[test]
fn is_position_independent() {
    let file = fs::read(env!("CARGO_BIN_EXE_raddle")).unwrap();
    assert_eq!(&file[..4], b"\x7fELF");
    assert_eq!(
        u16::from_ne_bytes([file[E_TYPE], file[E_TYPE + 1]]),
        ET_DYN,
        "the program is no PIE"
    );
}
