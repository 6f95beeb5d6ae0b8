//! `#[raddle::main]`: runs the setup that must precede the first thread, then the function.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, ItemFn, Result, spanned::Spanned};

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new(options.span(), "#[raddle::main] has no options"));
    }
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
        ..
    } = syn::parse2(item)?;
    if sig.ident != "main" {
        return Err(Error::new(
            sig.ident.span(),
            "#[raddle::main] is for the function `main`",
        ));
    }
    if !sig.inputs.is_empty() {
        return Err(Error::new(
            sig.inputs.span(),
            "`main` takes no arguments: std::env::args has them",
        ));
    }
    let (ident, output) = (&sig.ident, &sig.output);
    let body = match sig.asyncness {
        Some(_) => quote! { ::raddle::__private::block_on(async #block) },
        None => quote! { #block },
    };
    Ok(quote! {
        #(#attrs)*
        #vis fn #ident() #output {
            // Runners and workers are this same program: for them, `enter` does not return.
            ::raddle::__private::enter(::core::option_env!("CARGO_PKG_VERSION"));
            #body
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_invalid_main_functions() {
        for (options, item, message_part) in [
            (
                quote!(flavor = "x"),
                quote!(
                    async fn main() {}
                ),
                "#[raddle::main] has no options",
            ),
            (
                quote!(),
                quote!(
                    async fn start() {}
                ),
                "#[raddle::main] is for the function `main`",
            ),
            (
                quote!(),
                quote!(
                    async fn main(args: Vec<String>) {}
                ),
                "`main` takes no arguments",
            ),
            (
                quote!(),
                quote!(
                    struct Main;
                ),
                "expected",
            ),
        ] {
            let message = expand(options, item)
                .expect_err("it is refused")
                .to_string();
            assert!(message.contains(message_part), "{message}");
        }
    }

    #[test]
    fn only_an_async_main_has_a_runtime() {
        let expanded = |item| {
            expand(TokenStream::new(), item)
                .expect("it is one")
                .to_string()
        };
        assert!(
            expanded(quote!(
                async fn main() -> u8 {
                    0
                }
            ))
            .contains("block_on")
        );
        let plain = expanded(quote!(
            fn main() {}
        ));
        assert!(
            plain.contains("enter") && !plain.contains("block_on"),
            "{plain}"
        );
        assert!(
            plain.contains("option_env ! (\"CARGO_PKG_VERSION\")"),
            "the version of the program: {plain}"
        );
    }
}
