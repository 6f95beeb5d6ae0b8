//! `#[raddle::main]`: what has to happen before the first thread, then the function.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, ItemFn, Result, spanned::Spanned};

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new(options.span(), "#[raddle::main] has no options"));
    }
    let ItemFn { attrs, vis, sig, block, .. } = syn::parse2(item)?;
    if sig.ident != "main" {
        return Err(Error::new(sig.ident.span(), "#[raddle::main] is for the function `main`"));
    }
    if !sig.inputs.is_empty() {
        return Err(Error::new(sig.inputs.span(), "`main` takes no arguments: std::env::args has them"));
    }
    let (ident, output) = (&sig.ident, &sig.output);
    let body = match sig.asyncness {
        Some(_) => quote! { ::raddle::__private::block_on(async #block) },
        None => quote! { #block },
    };
    Ok(quote! {
        #(#attrs)*
        #vis fn #ident() #output {
            // Runners, and workers, are this same program: they do not get past this.
            ::raddle::__private::enter();
            #body
        }
    })
}
