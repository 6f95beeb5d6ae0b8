//! A function without a body: a routine of another program, in any language, which this program
//! calls and never runs.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, ForeignItemFn, LitStr, Result, ext::IdentExt};

use super::{generated_fns::GeneratedFns, signature::Signature};
use crate::Features;

/// Expands a declaration to the function that calls the routine, and its name. The program's
/// routine registry gets no entry.
pub(super) fn expand(
    name: Option<LitStr>,
    function: ForeignItemFn,
    features: Features,
) -> Result<TokenStream> {
    let ForeignItemFn {
        attrs, vis, sig, ..
    } = function;
    let signature = Signature::read(&sig, false)?;
    let ident = &sig.ident;
    let Some(name) = name else {
        let message = "a routine without a body is another program's: say what it is called there, \
                       with #[raddle::routine(name = \"…\")]";
        return Err(Error::new_spanned(ident, message));
    };
    let generated = GeneratedFns {
        attributes: &attrs,
        visibility: &vis,
        itself: None,
        is_fresh: false,
        signature: &signature,
    };
    let call = features
        .calls
        .then(|| generated.call(ident, &quote!(#ident::NAME)));
    let (conditions, checks) = (
        generated.conditions(),
        signature.output.check(|ty| quote!(#ty)),
    );
    let about = format!(
        "The routine `{}`, which is another program's.",
        ident.unraw()
    );
    let companion = generated.companion_type(ident, &about, &quote!(#name), &TokenStream::new());
    Ok(quote! {
        #call

        #companion

        #(#conditions)*
        const _: () = { #checks };
    })
}
