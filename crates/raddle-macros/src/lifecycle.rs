//! `#[raddle::startup]` and `#[raddle::shutdown]`: functions that run once in each process that
//! runs routines.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Type, ext::IdentExt};

use crate::routine::{bare, state_type};

/// Which of the two attributes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Startup,
    Shutdown,
}

pub(crate) fn expand(stage: Stage, options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let name = match stage {
        Stage::Startup => "#[raddle::startup]",
        Stage::Shutdown => "#[raddle::shutdown]",
    };
    if !options.is_empty() {
        return Err(Error::new_spanned(
            options,
            format!("{name} has no options"),
        ));
    }
    let function: ItemFn = syn::parse2(item)?;
    let sig = &function.sig;
    if !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &sig.generics,
            format!("a function with {name} cannot be generic"),
        ));
    }
    let mut states = Vec::new();
    for input in &sig.inputs {
        let state = match input {
            FnArg::Typed(input) => state_type(&input.ty),
            FnArg::Receiver(_) => None,
        };
        match state.filter(|_| stage == Stage::Shutdown) {
            Some(state) => states.push(state),
            None if stage == Stage::Shutdown => {
                let message = "a shutdown function takes `raddle::State<…>` and nothing else";
                return Err(Error::new_spanned(input, message));
            }
            None => {
                let message =
                    "a startup function takes no arguments: it makes the state of its process";
                return Err(Error::new_spanned(input, message));
            }
        }
    }
    let (ident, plain) = (&sig.ident, sig.ident.unraw().to_string());
    let wait = sig.asyncness.is_some().then(|| quote!(.await));
    let given = states.iter().map(|state| {
        quote!(::raddle::__private::required_state::<#state>().map_err(|error| ::std::string::ToString::to_string(&error))?)
    });
    let call = quote!(#ident(#(#given),*) #wait);
    let is_result = match &sig.output {
        ReturnType::Type(_, ty) => matches!(bare(ty), Type::Path(path)
            if path.path.segments.last().is_some_and(|last| last.ident == "Result")),
        ReturnType::Default => false,
    };
    let value = if is_result {
        quote!(#call.map_err(|error| ::std::format!("{error:#}"))?)
    } else {
        call
    };
    let hook = match stage {
        Stage::Startup => quote! {
            ::raddle::__private::LifecycleHook::Startup {
                name: #plain,
                run: || ::std::boxed::Box::pin(async {
                    let value = #value;
                    ::core::result::Result::Ok(::std::sync::Arc::new(value) as ::raddle::__private::StateValue)
                }),
            }
        },
        Stage::Shutdown => quote! {
            ::raddle::__private::LifecycleHook::Shutdown {
                name: #plain,
                run: || ::std::boxed::Box::pin(async {
                    let _ = #value;
                    ::core::result::Result::Ok(())
                }),
            }
        },
    };
    Ok(quote! {
        #function

        const _: () = {
            ::raddle::__private::inventory::submit! { #hook }
        };
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_be_a_hook() {
        for (stage, item, part) in [
            (
                Stage::Startup,
                quote!(
                    async fn open(url: String) -> Db {
                        todo!()
                    }
                ),
                "takes no arguments",
            ),
            (
                Stage::Shutdown,
                quote!(
                    async fn close(url: String) {}
                ),
                "takes `raddle::State<…>`",
            ),
            (
                Stage::Startup,
                quote!(
                    fn open<T>() -> T {
                        todo!()
                    }
                ),
                "cannot be generic",
            ),
        ] {
            let message = expand(stage, TokenStream::new(), item)
                .expect_err("it is refused")
                .to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(
            expand(
                Stage::Shutdown,
                TokenStream::new(),
                quote!(
                    async fn close(db: raddle::State<Db>) -> Result<(), E> {
                        Ok(())
                    }
                )
            )
            .is_ok()
        );
    }
}
