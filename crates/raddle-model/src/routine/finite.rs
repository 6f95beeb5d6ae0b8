//! Refuses NaN and infinities, which `serde_json` would silently write as `null`. Every other value
//! passes through.

use serde::{
    Serialize, Serializer,
    ser::{
        Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

/// A value that serializes only if all its numbers are finite.
pub(super) struct Finite<'a, T: ?Sized>(pub(super) &'a T);

/// A serializer that wraps another and checks floats.
struct FiniteSerializer<S>(S);

impl<T: Serialize + ?Sized> Serialize for Finite<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(FiniteSerializer(serializer))
    }
}

/// Methods that forward to the inner serializer.
macro_rules! forward {
    ($($name:ident($($argument:ident: $of:ty),*);)*) => {
        $(fn $name(self, $($argument: $of),*) -> Result<S::Ok, S::Error> {
            self.0.$name($($argument),*)
        })*
    };
}

/// Methods that start a compound value.
macro_rules! begin_compound {
    ($($name:ident($($argument:ident: $of:ty),*) -> $compound:ident;)*) => {
        $(fn $name(self, $($argument: $of),*) -> Result<FiniteSerializer<S::$compound>, S::Error> {
            self.0.$name($($argument),*).map(FiniteSerializer)
        })*
    };
}

impl<S: Serializer> Serializer for FiniteSerializer<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = FiniteSerializer<S::SerializeSeq>;
    type SerializeTuple = FiniteSerializer<S::SerializeTuple>;
    type SerializeTupleStruct = FiniteSerializer<S::SerializeTupleStruct>;
    type SerializeTupleVariant = FiniteSerializer<S::SerializeTupleVariant>;
    type SerializeMap = FiniteSerializer<S::SerializeMap>;
    type SerializeStruct = FiniteSerializer<S::SerializeStruct>;
    type SerializeStructVariant = FiniteSerializer<S::SerializeStructVariant>;

    forward! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    begin_compound! {
        serialize_seq(length: Option<usize>) -> SerializeSeq;
        serialize_tuple(length: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, length: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, length: usize) -> SerializeTupleVariant;
        serialize_map(length: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, length: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, length: usize) -> SerializeStructVariant;
    }

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            self.0.serialize_f32(value)
        } else {
            Err(not_finite())
        }
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            self.0.serialize_f64(value)
        } else {
            Err(not_finite())
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Finite(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Finite(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0
            .serialize_newtype_variant(name, index, variant, &Finite(value))
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

fn not_finite<E: Error>() -> E {
    E::custom("NaN and infinite numbers cannot be written in JSON")
}

/// Compound serializers that wrap each element in [`Finite`].
macro_rules! compound {
    ($($of:ident: $($method:ident($($key:ident: $text:ty)?)),+;)*) => {
        $(impl<S: $of> $of for FiniteSerializer<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            $(fn $method<T: Serialize + ?Sized>(&mut self, $($key: $text,)? value: &T) -> Result<(), S::Error> {
                self.0.$method($($key,)? &Finite(value))
            })+

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        })*
    };
}

compound! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(key: &'static str);
    SerializeStructVariant: serialize_field(key: &'static str);
}
