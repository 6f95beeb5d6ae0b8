//! The entry in the program's list of routines: arguments in, the function, and what comes of it out.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, Type};

use super::{output::Output, signature::Signature};

/// What one is made of.
pub(super) struct Entry<'a> {
    /// An expression: the routine's name.
    pub(super) name: &'a TokenStream,
    /// The function that has the user's body.
    pub(super) here: TokenStream,
    pub(super) signature: &'a Signature,
    /// What `Self` is, in an `impl` block.
    pub(super) itself: Option<&'a Type>,
    /// Without what it depends on, there is no entry.
    pub(super) conditions: &'a [&'a Attribute],
}

/// The variables of the entry, which have nothing to do with those of the user.
struct Names {
    given: Ident,
    form: Ident,
    arguments: Ident,
}

impl Entry<'_> {
    pub(super) fn write(&self) -> TokenStream {
        let Self { name, conditions, .. } = self;
        let (run, checks) = (self.run(), self.signature.output.check(|of| self.named(of)));
        quote! {
            #(#conditions)*
            const _: () = {
                #checks
                ::raddle::__private::inventory::submit! {
                    ::raddle::__private::Routine {
                        name: #name,
                        place: ::core::concat!(::core::file!(), ":", ::core::line!()),
                        run: #run,
                    }
                }
            };
        }
    }

    fn run(&self) -> TokenStream {
        let mine = |name| Ident::new(name, Span::mixed_site());
        let names = Names { given: mine("given"), form: mine("form"), arguments: mine("arguments") };
        let Names { given, form, .. } = &names;
        let (read, passed) = self.read(&names);
        let here = &self.here;
        let answer = match (&self.signature.output, self.signature.is_async) {
            (Output::Items(of), _) => {
                let of = self.named(of);
                let items = quote!(<#of as ::raddle::__private::Crosses>::items(#form, #here(#(#passed),*)));
                quote!(::core::result::Result::Ok(#items))
            }
            (output, false) => self.answer(output, &names, quote!(#here(#(#passed),*))),
            (output, true) => {
                let answer = self.answer(output, &names, quote!(#here(#(#passed),*).await));
                quote!(::core::result::Result::Ok(::std::boxed::Box::pin(async move { #answer })))
            }
        };
        let way = match (&self.signature.output, self.signature.is_async) {
            (Output::Items(_), _) => quote!(Stream),
            (_, true) => quote!(Async),
            (_, false) => quote!(Plain),
        };
        quote! {
            ::raddle::__private::Run::#way(|#given| {
                let #form = #given.form();
                #read
                #answer
            })
        }
    }

    /// Code that reads all arguments into variables, and these as they are passed on.
    fn read(&self, names: &Names) -> (TokenStream, Vec<TokenStream>) {
        let Names { given, arguments, .. } = names;
        let count = self.signature.count();
        if count == 0 {
            return (quote!(::raddle::__private::Arguments::of(#given, 0)?;), Vec::new());
        }
        let mut read = quote!(let mut #arguments = ::raddle::__private::Arguments::of(#given, #count)?;);
        let mut passed = Vec::new();
        let mut next = |variable: Ident, of: &Type, key: &str, is_borrowed: bool| {
            let of = self.named(of);
            let taken = quote!(<#of as ::raddle::__private::Crosses>::take);
            read.extend(quote!(let #variable = #taken(&mut #arguments, #key)?;));
            passed.push(if is_borrowed { quote!(&#variable) } else { quote!(#variable) });
        };
        if let Some(receiver) = &self.signature.receiver {
            next(Ident::new("itself", Span::mixed_site()), &receiver.of, "self", receiver.is_borrowed);
        }
        for argument in &self.signature.arguments {
            let variable = format_ident!("argument_{}", argument.name, span = Span::mixed_site());
            next(variable, &argument.of, &argument.key(), false);
        }
        (read, passed)
    }

    /// The answer to make of what the function has returned.
    fn answer(&self, output: &Output, names: &Names, returned: TokenStream) -> TokenStream {
        let form = &names.form;
        match output {
            Output::Value(of) | Output::Items(of) => {
                let of = self.named(of);
                quote!(<#of as ::raddle::__private::Crosses>::answer(&#returned, #form))
            }
            Output::Result { value, error } => {
                let (value, error) = (self.named(value), self.named(error));
                quote! {{
                    // Finds out whether the error's type can be written down, which only here is known.
                    use ::raddle::__private::Unwritten as _;
                    let returned: ::core::result::Result<#value, #error> = #returned;
                    match returned {
                        ::core::result::Result::Ok(value) => <#value as ::raddle::__private::Crosses>::answer(&value, #form),
                        ::core::result::Result::Err(error) => {
                            let written = ::raddle::__private::Written(&error).value(#form);
                            ::core::result::Result::Err(<#error as ::raddle::__private::Tells>::failure(&error, written))
                        }
                    }
                }}
            }
        }
    }

    /// A type, as it is called outside of the `impl` block.
    fn named(&self, of: &impl ToTokens) -> TokenStream {
        match self.itself {
            Some(itself) => without_self(of.to_token_stream(), itself),
            None => of.to_token_stream(),
        }
    }
}

/// Replaces every `Self`. The type takes its place in the source, too, where errors point to.
fn without_self(tokens: TokenStream, itself: &Type) -> TokenStream {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(ident) if ident == "Self" => respanned(itself.to_token_stream(), ident.span()),
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
