use std::{collections::BTreeMap, fmt::Debug, net::Ipv4Addr};

use serde::Serializer;

use super::*;

/// Returns a value as JSON, and asserts that it round-trips in every encoding.
fn json<T: Serialize + DeserializeOwned + PartialEq + Debug + 'static>(value: &T) -> String {
    for encoding in Encoding::ALL {
        assert_eq!(
            encoding.read::<T>(&encoding.write(value).unwrap()).as_ref(),
            Ok(value),
            "{encoding}"
        );
    }
    String::from_utf8(Encoding::Json.write(value).unwrap()).unwrap()
}

/// Returns why JSON refuses a value that MessagePack accepts.
fn refused<T: Serialize + 'static>(value: &T) -> String {
    Encoding::MessagePack.write(value).unwrap();
    Encoding::Json.write(value).unwrap_err()
}

struct Bytes(&'static [u8]);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(f64),
    Line(i8, i8),
    Rectangle { width: u32, height: Option<u32> },
}

#[test]
fn integers_round_trip_exactly() {
    assert_eq!(json(&u64::MAX), "18446744073709551615");
    assert_eq!(json(&i64::MIN), "-9223372036854775808");
    assert_eq!(json(&((1_u64 << 53) + 1)), "9007199254740993");
    assert_eq!(json(&u128::MAX), "340282366920938463463374607431768211455");
}

#[test]
fn floats_round_trip_and_json_refuses_nan() {
    assert_eq!(json(&0.1_f64), "0.1");
    assert_eq!(json(&f64::MAX), "1.7976931348623157e+308");
    assert_eq!(json(&f64::MIN_POSITIVE), "2.2250738585072014e-308");
    assert_eq!(json(&0.1_f32), "0.1");
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(
            refused(&wrong).contains("NaN and infinite numbers"),
            "{}",
            refused(&wrong)
        );
        refused(&(wrong as f32));
        // At any nesting.
        refused(&vec![Some(wrong)]);
        refused(&(1, wrong));
        refused(&BTreeMap::from([("a", wrong)]));
        refused(&Shape::Circle(wrong));
    }
    Encoding::Json.read::<f64>(b"NaN").unwrap_err();
}

#[test]
fn json_uses_the_usual_serde_representation() {
    assert_eq!(json(&Shape::Point), r#""Point""#);
    assert_eq!(json(&Shape::Circle(1.5)), r#"{"Circle":1.5}"#);
    assert_eq!(json(&Shape::Line(-1, 2)), r#"{"Line":[-1,2]}"#);
    let rectangle = Shape::Rectangle {
        width: 1,
        height: None,
    };
    assert_eq!(
        json(&rectangle),
        r#"{"Rectangle":{"width":1,"height":null}}"#
    );
    assert_eq!(
        json(&((), true, 'x', Some("a\u{0}\"".to_owned()))),
        r#"[null,true,"x","a\u0000\""]"#
    );
    // Human-readable in JSON, binary in MessagePack.
    assert_eq!(json(&Ipv4Addr::LOCALHOST), r#""127.0.0.1""#);
}

#[test]
fn json_writes_bytes_as_numbers() {
    assert_eq!(json(&vec![0_u8, 255]), "[0,255]");
    assert_eq!(Encoding::Json.write(&Bytes(&[0, 255])).unwrap(), b"[0,255]");
}

#[test]
fn message_pack_copies_byte_vectors() {
    let (bytes, packed) = (vec![255_u8; 300], Encoding::MessagePack);
    let written = packed.write(&bytes).unwrap();
    assert_eq!(
        written,
        [&b"\xc5\x01\x2c"[..], &bytes].concat(),
        "a byte string, as `serialize_bytes` writes it"
    );
    assert_eq!(packed.write(&Bytes(&[255; 300])).unwrap(), written);
    assert_eq!(packed.read(&written), Ok(bytes.clone()));
    // Other implementations write an array, and the decoder accepts both.
    let array = packed
        .write(
            &bytes
                .iter()
                .map(|byte| u64::from(*byte))
                .collect::<Vec<_>>(),
        )
        .unwrap();
    assert_eq!(packed.read(&array), Ok(bytes.clone()));
    assert_eq!(
        packed.read::<Vec<u64>>(&written),
        packed.read::<Vec<u64>>(&array)
    );
    assert_eq!(
        packed.rewrite::<Vec<u8>>(&written, Encoding::Json),
        packed.rewrite_any(&array, Encoding::Json)
    );
    assert_eq!(
        packed.read(&packed.write(&Vec::<u8>::new()).unwrap()),
        Ok(Vec::<u8>::new())
    );
    for other in [
        packed.write(&"text").unwrap(),
        packed.write(&[256]).unwrap(),
        b"\xc5\x01\x2c".to_vec(),
    ] {
        packed.read::<Vec<u8>>(&other).unwrap_err();
    }
}

#[test]
fn json_keys_are_text_or_numbers() {
    assert_eq!(json(&BTreeMap::from([(1_u64, 2)])), r#"{"1":2}"#);
    assert_eq!(json(&BTreeMap::from([(-1_i8, 2)])), r#"{"-1":2}"#);
    assert_eq!(json(&BTreeMap::from([(true, 2)])), r#"{"true":2}"#);
    assert!(refused(&BTreeMap::from([((1, 2), 3)])).contains("key must be a string"));
}

#[test]
fn refuses_values_of_another_type() {
    for nonsense in [&b""[..], b"{", b"1 2", b"\"\xff\"", b"[1]"] {
        Encoding::Json.read::<u8>(nonsense).unwrap_err();
    }
    // Deep nesting is refused before it overflows the stack.
    Encoding::Json
        .read::<Value>("[".repeat(1_000_000).as_bytes())
        .unwrap_err();
}

#[test]
fn transcodes_with_and_without_the_type() {
    use Encoding::{Json, MessagePack};
    let written = |encoding: Encoding| encoding.write(&Ipv4Addr::LOCALHOST).unwrap();
    assert_eq!(
        MessagePack.rewrite::<Ipv4Addr>(&written(MessagePack), Json),
        Ok(written(Json))
    );
    assert_eq!(
        Json.rewrite::<Ipv4Addr>(&written(Json), MessagePack),
        Ok(written(MessagePack))
    );
    // Without the type, the binary form stays.
    assert_eq!(
        MessagePack
            .rewrite_any(&written(MessagePack), Json)
            .unwrap(),
        b"[127,0,0,1]"
    );

    let plain = (
        u64::MAX,
        -1,
        1.5,
        "text".to_owned(),
        Some(vec![()]),
        BTreeMap::from([("a".to_owned(), true)]),
    );
    assert_eq!(
        MessagePack.rewrite_any(&MessagePack.write(&plain).unwrap(), Json),
        Json.write(&plain)
    );
    assert_eq!(
        Json.rewrite_any(&Json.write(&plain).unwrap(), MessagePack),
        MessagePack.write(&plain)
    );
    let keyed = MessagePack
        .write(&BTreeMap::from([(1_u8, Bytes(&[7])), (2, Bytes(&[]))]))
        .unwrap();
    assert_eq!(
        MessagePack.rewrite_any(&keyed, Json).unwrap(),
        br#"{"1":[7],"2":[]}"#
    );
    for wrong in [
        MessagePack.write(&f64::NAN),
        MessagePack.write(&BTreeMap::from([([1], 2)])),
        Ok(b"\xc1".to_vec()),
    ] {
        MessagePack.rewrite_any(&wrong.unwrap(), Json).unwrap_err();
    }
}

#[test]
fn encoding_names_round_trip() {
    for encoding in Encoding::ALL {
        assert_eq!(encoding.to_string().parse(), Ok(encoding));
        assert_eq!(serde_json::to_value(encoding).unwrap(), encoding.name());
    }
    assert_eq!(
        "xml".parse::<Encoding>().unwrap_err().to_string(),
        "'xml' is not an encoding: use messagepack or json"
    );
}
