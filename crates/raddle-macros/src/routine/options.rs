//! Options of `#[raddle::routine(…)]`.

use proc_macro2::TokenStream;
use syn::{Error, LitStr, Result, parse::Parser};

/// Returns the name of the routine in tasks and calls, if it is not derived from its path.
pub(super) fn given_name(options: TokenStream) -> Result<Option<LitStr>> {
    let mut name = None;
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("name") {
            return Err(meta.error("the only option is `name = \"…\"`"));
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
        name = Some(given);
        Ok(())
    });
    parser.parse2(options)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn given(options: TokenStream) -> Result<Option<String>> {
        Ok(given_name(options)?.map(|name| name.value()))
    }

    #[test]
    fn accepts_only_valid_names() {
        for (options, said) in [
            (quote!(nmae = "x"), "the only option is `name = \"…\"`"),
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
