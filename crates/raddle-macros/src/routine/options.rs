//! Options of `#[raddle::routine(…)]`.

use proc_macro2::TokenStream;
use syn::{Error, LitStr, Result, parse::Parser};

/// Options of one routine.
#[derive(Default)]
pub(super) struct RoutineOptions {
    /// The name of the routine in tasks and calls, if it is not derived from its path.
    pub(super) name: Option<LitStr>,
    /// Whether each of its tasks has a process of its own.
    pub(super) is_fresh: bool,
}

/// Parses the options.
pub(super) fn parse(options: TokenStream) -> Result<RoutineOptions> {
    let mut parsed = RoutineOptions::default();
    let parser = syn::meta::parser(|meta| {
        if meta.path.is_ident("isolation") {
            let given: LitStr = meta.value()?.parse()?;
            parsed.is_fresh = match given.value().as_str() {
                "shared" => false,
                "process" => true,
                _ => {
                    return Err(Error::new(
                        given.span(),
                        "the isolation of a routine is \"shared\" or \"process\"; a task can ask for more",
                    ));
                }
            };
            return Ok(());
        }
        if !meta.path.is_ident("name") {
            return Err(meta.error("the options are `name = \"…\"` and `isolation = \"…\"`"));
        }
        let given: LitStr = meta.value()?.parse()?;
        let text = given.value();
        let is_label = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@/".contains(&byte);
        if !(1..=128).contains(&text.len()) || !text.bytes().all(is_label) {
            return Err(Error::new(
                given.span(),
                "a name has 1 to 128 letters, digits, or . _ - : @ /",
            ));
        }
        parsed.name = Some(given);
        Ok(())
    });
    parser.parse2(options)?;
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn given(options: TokenStream) -> Result<Option<String>> {
        Ok(parse(options)?.name.map(|name| name.value()))
    }

    #[test]
    fn accepts_only_valid_names() {
        for (options, said) in [
            (quote!(nmae = "x"), "the options are `name = \"…\"`"),
            (quote!(isolation = "vm"), "is \"shared\" or \"process\""),
            (quote!(name = "a name"), "a name has 1 to 128 letters"),
            (quote!(name = ""), "a name has 1 to 128 letters"),
            (quote!(name = 3), "expected string literal"),
        ] {
            let message = given(options).expect_err("it is refused").to_string();
            assert!(message.contains(said), "{message}");
        }
        assert_eq!(given(quote!()).expect("it may be left out"), None);
        assert_eq!(
            given(quote!(name = "billing.send/v2"))
                .expect("it is one")
                .as_deref(),
            Some("billing.send/v2")
        );
    }
}
