//! The entry in the program's routine registry: decodes the arguments, calls the function and
//! encodes the result.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::Type;

use super::{generated_fns::GeneratedFns, output::Output};

impl GeneratedFns<'_> {
    /// Generates the entry of this name. `local` is the function with the user's body.
    pub(super) fn entry(&self, name: &TokenStream, local: &TokenStream) -> TokenStream {
        let conditions = self.conditions();
        let (run, checks) = (
            self.run(local),
            self.signature.output.check(|ty| self.named(ty)),
        );
        let isolation = if self.is_fresh {
            quote!(::raddle::__private::Isolation::Process)
        } else {
            quote!(::raddle::__private::Isolation::Shared)
        };
        quote! {
            #(#conditions)*
            const _: () = {
                #checks
                ::raddle::__private::inventory::submit! {
                    ::raddle::__private::Routine {
                        name: #name,
                        place: ::core::concat!(::core::file!(), ":", ::core::line!()),
                        isolation: #isolation,
                        run: #run,
                    }
                }
            };
        }
    }

    fn run(&self, local: &TokenStream) -> TokenStream {
        let (read, passed) = self.read();
        let answer = match (&self.signature.output, self.signature.is_async) {
            (Output::Items(ty), _) => {
                let ty = self.named(ty);
                let items = quote!(<#ty as ::raddle::__private::RoutineValue>::items(__form, #local(#(#passed),*)));
                quote!(::core::result::Result::Ok(#items))
            }
            (output, false) => self.answer(output, quote!(#local(#(#passed),*))),
            (output, true) => {
                let answer = self.answer(output, quote!(#local(#(#passed),*).await));
                quote!(::core::result::Result::Ok(::std::boxed::Box::pin(async move { #answer })))
            }
        };
        let way = match (&self.signature.output, self.signature.is_async) {
            (Output::Items(_), _) => quote!(Stream),
            (_, true) => quote!(Async),
            (_, false) => quote!(Plain),
        };
        quote! {
            ::raddle::__private::RoutineFn::#way(|__given| {
                let __form = __given.form();
                #read
                #answer
            })
        }
    }

    /// Generates code that reads all arguments into variables, and the expressions that pass them
    /// on.
    fn read(&self) -> (TokenStream, Vec<TokenStream>) {
        let arguments = &self.signature.arguments;
        let count = self.sent().count();
        let mutability = (count > 0).then(|| quote!(mut));
        let mut read = quote!(let #mutability __arguments = ::raddle::__private::Arguments::decode(__given, #count)?;);
        let mut passed = Vec::new();
        for argument in arguments {
            let (key, ty) = (argument.key(), self.named(&argument.ty));
            let variable = format_ident!("__argument_{}", key);
            if let Some(state) = &argument.state {
                let state = self.named(state);
                read.extend(
                    quote!(let #variable = ::raddle::__private::required_state::<#state>()?;),
                );
                passed.push(quote!(#variable));
                continue;
            }
            let taken = quote!(<#ty as ::raddle::__private::RoutineValue>::take);
            read.extend(quote!(let #variable = #taken(&mut __arguments, #key)?;));
            passed.push(if argument.is_borrowed {
                quote!(&#variable)
            } else {
                quote!(#variable)
            });
        }
        (read, passed)
    }

    /// Generates code that encodes the returned value.
    fn answer(&self, output: &Output, returned: TokenStream) -> TokenStream {
        match output {
            Output::Value(ty) | Output::Items(ty) => {
                let ty = self.named(ty);
                quote!(<#ty as ::raddle::__private::RoutineValue>::answer(&#returned, __form))
            }
            Output::Result { value, error } => {
                let (value, error) = (self.named(value), self.named(error));
                quote! {{
                    // Method resolution detects whether the error type is serializable. Only the
                    // expanded code knows that.
                    use ::raddle::__private::OpaqueError as _;
                    let returned: ::core::result::Result<#value, #error> = #returned;
                    match returned {
                        ::core::result::Result::Ok(value) => <#value as ::raddle::__private::RoutineValue>::answer(&value, __form),
                        ::core::result::Result::Err(error) => {
                            let written = ::raddle::__private::SerializableError(&error).value(__form);
                            ::core::result::Result::Err(<#error as ::raddle::__private::RoutineError>::failure(&error, written))
                        }
                    }
                }}
            }
        }
    }

    /// Returns a type as it is named outside the `impl` block.
    fn named(&self, ty: &impl ToTokens) -> TokenStream {
        match self.itself {
            Some(itself) => without_self(ty.to_token_stream(), itself),
            None => ty.to_token_stream(),
        }
    }
}

/// Replaces every `Self` with the type, which takes over the span so that errors point to the right
/// place.
fn without_self(tokens: TokenStream, itself: &Type) -> TokenStream {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(ident) if ident == "Self" => {
                respanned(itself.to_token_stream(), ident.span())
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_self(group.stream(), itself));
                inner.set_span(group.span());
                TokenTree::Group(inner).into()
            }
            other => other.into(),
        })
        .collect()
}

fn respanned(tokens: TokenStream, span: Span) -> TokenStream {
    let place = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    tokens.into_iter().map(place).collect()
}
