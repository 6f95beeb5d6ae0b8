//! The functions generated for a routine: one that calls it, one that creates a task for it, and
//! the user's own.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Attribute, Block, Ident, Type, Visibility};

use super::signature::{Argument, Signature};

/// Input that the generated functions share.
pub(super) struct GeneratedFns<'a> {
    pub(super) attributes: &'a [Attribute],
    pub(super) visibility: &'a Visibility,
    /// The type that `Self` denotes in an `impl` block.
    pub(super) itself: Option<&'a Type>,
    /// Whether each of its tasks has a process of its own.
    pub(super) is_fresh: bool,
    pub(super) signature: &'a Signature,
}

impl GeneratedFns<'_> {
    /// Generates the function with the routine's own name, which calls it.
    pub(super) fn call(&self, ident: &Ident, name: &TokenStream) -> TokenStream {
        let about = self.picked(&["cfg", "doc", "deprecated"]);
        let (visibility, inputs, call) =
            (self.visibility, self.inputs(), self.signature.output.call());
        let count = self.sent().count();
        let rewrite = self.rewrite();
        let packed = quote!(::raddle::__private::EncodedArgs::new(#count).rewritten_by(#rewrite));
        let packed = self.each(packed, "pack");
        quote! {
            #(#about)*
            #[allow(dead_code, clippy::too_many_arguments, reason = "generated for every routine, used or not")]
            #visibility fn #ident(#inputs) -> #call {
                <#call>::new(#name, #packed)
            }
        }
    }

    pub(super) fn task(&self, ident: &TokenStream, plain: &str, name: &TokenStream) -> TokenStream {
        let about = self.picked(&["cfg", "deprecated"]);
        let doc = format!("A task that calls `{plain}` with these arguments.");
        let (visibility, inputs, result) = (
            self.visibility,
            self.inputs(),
            self.signature.output.result(),
        );
        let new = if self.is_fresh {
            quote!(::raddle::RoutineTask::new(#name).in_own_process())
        } else {
            quote!(::raddle::RoutineTask::new(#name))
        };
        let task = self.each(new, "give");
        quote! {
            #(#about)*
            #[doc = #doc]
            #[allow(dead_code, clippy::too_many_arguments, reason = "generated for every routine, used or not")]
            #visibility fn #ident(#inputs) -> ::raddle::RoutineTask<#result> {
                #task
            }
        }
    }

    /// Generates the user's own function under another name.
    pub(super) fn local(
        &self,
        ident: &TokenStream,
        plain: &str,
        sig: &syn::Signature,
        block: &Block,
    ) -> TokenStream {
        let syn::Signature {
            constness,
            asyncness,
            abi,
            inputs,
            output,
            ..
        } = sig;
        let about = self
            .attributes
            .iter()
            .filter(|attribute| !attribute.path().is_ident("doc"));
        let doc = format!("Runs `{plain}` in this process.");
        let visibility = self.visibility;
        quote! {
            #(#about)*
            #[doc = #doc]
            #visibility #constness #asyncness #abi fn #ident(#inputs) #output #block
        }
    }

    /// Generates the type with the routine's own name, which holds `NAME` and these functions.
    pub(super) fn companion_type(
        &self,
        ident: &Ident,
        about: &str,
        name: &TokenStream,
        functions: &TokenStream,
    ) -> TokenStream {
        let (visibility, conditions) = (self.visibility, self.conditions());
        quote! {
            #(#conditions)*
            #[doc = #about]
            #[allow(non_camel_case_types, dead_code, reason = "it shares the name of a function")]
            #visibility struct #ident {
                _never: ::core::convert::Infallible,
            }

            #(#conditions)*
            impl #ident {
                /// Name of the routine in tasks and calls.
                #[allow(dead_code, reason = "a program may not use it")]
                #visibility const NAME: &'static str = #name;

                #functions
            }
        }
    }

    /// Returns the arguments that callers pass: all but state.
    pub(super) fn sent(&self) -> impl Iterator<Item = &Argument> {
        self.signature
            .arguments
            .iter()
            .filter(|argument| argument.state.is_none())
    }

    /// Returns the attributes that decide whether the function exists at all.
    pub(super) fn conditions(&self) -> Vec<&Attribute> {
        self.picked(&["cfg"])
    }

    fn picked(&self, names: &[&str]) -> Vec<&Attribute> {
        let is_one =
            |attribute: &&Attribute| names.iter().any(|name| attribute.path().is_ident(name));
        self.attributes.iter().filter(is_one).collect()
    }

    /// Generates the arguments for a function that does not modify them.
    fn inputs(&self) -> TokenStream {
        let all = self.sent().map(
            |Argument {
                 name,
                 ty,
                 is_borrowed,
                 ..
             }| {
                match (name == "self", is_borrowed) {
                    (true, true) => quote!(&self),
                    (true, false) => quote!(self),
                    (false, _) => quote!(#name: #ty),
                }
            },
        );
        quote!(#(#all),*)
    }

    /// Generates a function that transcodes encoded arguments to JSON, for workers that read
    /// nothing else. Only the expanded code knows the types.
    fn rewrite(&self) -> TokenStream {
        let count = self.sent().count();
        let each = self.sent().map(|argument| {
            let (ty, key) = (&argument.ty, argument.key());
            quote!(<#ty as ::raddle::__private::RoutineValue>::rewrite(&mut __rewriting, #key)?;)
        });
        let mutability = (count > 0).then(|| quote!(mut));
        quote! {
            |__packed| {
                let #mutability __rewriting = ::raddle::__private::TranscodedArgs::new(__packed, #count)?;
                #(#each)*
                ::core::result::Result::Ok(__rewriting.finish())
            }
        }
    }

    /// Folds every argument into `first`.
    fn each(&self, first: TokenStream, add: &str) -> TokenStream {
        let add = Ident::new(add, Span::call_site());
        self.sent().fold(first, |all, argument| {
            let (
                Argument {
                    name,
                    ty,
                    is_borrowed,
                    ..
                },
                key,
            ) = (argument, argument.key());
            let value = if *is_borrowed {
                quote!(#name)
            } else {
                quote!(&#name)
            };
            quote!(<#ty as ::raddle::__private::RoutineValue>::#add(#value, #all, #key))
        })
    }
}
