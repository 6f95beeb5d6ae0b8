//! Values that are written as text.

/// Names the values of an enum, in the order of their numbers: `ALL`, `as_str` and `Display`.
macro_rules! names {
    ($type:ident { $($value:ident => $name:literal,)+ }) => {
        impl $type {
            /// All of them, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Has types serialized by `Display`, and deserialized by `FromStr`.
macro_rules! serialized_as_text {
    ($($type:ident),+) => {
        $(impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        })+
    };
}

pub(crate) use {names, serialized_as_text};

/// Whether a value need not be written: for `skip_serializing_if`.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
