//! `#[raddle::routine]`: the function stays as it is; beside it stands a type of the same name with `task`, and an entry in the program's
//! list of routines.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Error, FnArg, GenericArgument, Ident, ItemFn, LitStr, Pat, PathArguments, Result, ReturnType, Safety, Type,
    parse::Parser, spanned::Spanned,
};

/// One argument of the function.
struct Argument {
    name: Ident,
    of: Box<Type>,
}

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let name = given_name(options)?;
    let function: ItemFn = syn::parse2(item)?;
    check(&function)?;
    let arguments = function.sig.inputs.iter().map(argument).collect::<Result<Vec<_>>>()?;
    let ident = &function.sig.ident;
    let visibility = &function.vis;
    let name = match name {
        Some(name) => quote!(#name),
        None => quote!(::core::concat!(::core::module_path!(), "::", ::core::stringify!(#ident))),
    };
    let (names, types): (Vec<_>, Vec<_>) = arguments.iter().map(|argument| (&argument.name, &argument.of)).unzip();
    let (result, is_result) = result_of(&function.sig.output);
    let run = run(&function, &arguments, is_result);
    let about = format!("The routine [`{ident}`] as a task.");
    let task = format!("A task that calls [`{ident}`] with these arguments.");
    Ok(quote! {
        #function

        #[doc = #about]
        #[allow(non_camel_case_types, dead_code, reason = "it stands beside a function and has its name")]
        #visibility struct #ident {
            _never: ::core::convert::Infallible,
        }

        #[allow(dead_code, reason = "a worker's program may have no use for it")]
        impl #ident {
            /// Its name in tasks.
            #visibility const NAME: &'static str = #name;

            #[doc = #task]
            #visibility fn task(#(#names: #types),*) -> ::raddle::Task<#result> {
                ::raddle::Task::new(Self::NAME)#(.argument(::core::stringify!(#names), &#names))*
            }
        }

        const _: () = {
            ::raddle::__private::inventory::submit! {
                ::raddle::__private::Routine {
                    name: #name,
                    place: ::core::concat!(::core::file!(), ":", ::core::line!()),
                    run: #run,
                }
            }
        };
    })
}

/// The entry's own function: arguments out of the job, the call, its result as JSON.
fn run(function: &ItemFn, arguments: &[Argument], is_result: bool) -> TokenStream {
    let ident = &function.sig.ident;
    let count = arguments.len();
    let names: Vec<_> = arguments.iter().map(|argument| format_ident!("argument_{}", argument.name)).collect();
    let keys = arguments.iter().map(|argument| argument.name.to_string());
    let types = arguments.iter().map(|argument| &argument.of);
    let wait = function.sig.asyncness.map(|_| quote!(.await));
    let convert = if is_result { quote!(from_result) } else { quote!(from_value) };
    let body = quote! {
        let mut given = ::raddle::__private::Arguments::of(job, #count)?;
        #(let #names: #types = given.next(#keys)?;)*
        let _ = given;
        ::raddle::__private::#convert(#ident(#(#names),*) #wait)
    };
    if function.sig.asyncness.is_some() {
        quote!(::raddle::__private::Run::Async(|job| ::std::boxed::Box::pin(async move { #body })))
    } else {
        quote!(::raddle::__private::Run::Plain(|job| { #body }))
    }
}

fn given_name(options: TokenStream) -> Result<Option<LitStr>> {
    let mut name = None;
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("name") {
            return Err(meta.error("the only option is `name = \"…\"`"));
        }
        let given: LitStr = meta.value()?.parse()?;
        let text = given.value();
        let is_label = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@/".contains(&byte);
        if !(1..=128).contains(&text.len()) || !text.bytes().all(is_label) {
            return Err(Error::new(given.span(), "a name has 1 to 128 letters, digits, or . _ - : @ /"));
        }
        name = Some(given);
        Ok(())
    });
    parser.parse2(options)?;
    Ok(name)
}

/// Refuses what cannot be sent to another process, with a word of why.
fn check(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    if !signature.generics.params.is_empty() {
        let message = "a routine cannot be generic: its name must stand for one function. Make one for each type";
        return Err(Error::new(signature.generics.span(), message));
    }
    if let Safety::Unsafe(unsafety) = &signature.safety {
        return Err(Error::new(
            unsafety.span(),
            "a routine cannot be unsafe: nobody could keep its promise from another process",
        ));
    }
    if let Some(variadic) = &signature.variadic {
        return Err(Error::new(variadic.span(), "a routine takes a fixed number of arguments"));
    }
    if signature.inputs.len() > 12 {
        return Err(Error::new(
            signature.inputs.span(),
            "a routine takes at most 12 arguments: put them into a struct",
        ));
    }
    Ok(())
}

fn argument(input: &FnArg) -> Result<Argument> {
    let FnArg::Typed(input) = input else {
        return Err(Error::new(
            input.span(),
            "a method cannot be a routine: give what it needs of itself as an argument",
        ));
    };
    let Pat::Ident(name) = &*input.pat else {
        return Err(Error::new(input.pat.span(), "give this argument a name: tasks can name it too"));
    };
    match &*input.ty {
        Type::Reference(reference) => {
            let message = "an argument crosses to another process: take it by value, as `String` for `&str` or `Vec<T>` for `&[T]`";
            Err(Error::new(reference.span(), message))
        }
        Type::ImplTrait(any) => {
            Err(Error::new(any.span(), "`impl Trait` is generic, and a routine cannot be: name the type"))
        }
        _ => Ok(Argument { name: name.ident.clone(), of: input.ty.clone() }),
    }
}

/// The type of the value, and whether it comes in a `Result`.
fn result_of(output: &ReturnType) -> (TokenStream, bool) {
    let ReturnType::Type(_, of) = output else { return (quote!(()), false) };
    if let Type::Path(path) = &**of
        && let Some(last) = path.path.segments.last()
        && last.ident == "Result"
        && let PathArguments::AngleBracketed(inner) = &last.arguments
        && let Some(GenericArgument::Type(value)) = inner.args.first()
    {
        return (quote!(#value), true);
    }
    (quote!(#of), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: TokenStream, item: TokenStream) -> String {
        expand(options, item).expect_err("it is refused").to_string()
    }

    #[test]
    fn what_cannot_be_a_routine_is_refused_with_a_word_of_why() {
        let none = TokenStream::new;
        for (item, said) in [
            (
                quote!(
                    fn f<T>(of: T) {}
                ),
                "a routine cannot be generic",
            ),
            (
                quote!(
                    fn f(text: &str) {}
                ),
                "take it by value, as `String` for `&str`",
            ),
            (
                quote!(
                    fn f(any: impl Clone) {}
                ),
                "`impl Trait` is generic",
            ),
            (
                quote!(
                    fn f((a, b): (u8, u8)) {}
                ),
                "give this argument a name",
            ),
            (
                quote!(
                    fn f(&self) {}
                ),
                "a method cannot be a routine",
            ),
            (
                quote!(
                    unsafe fn f() {}
                ),
                "a routine cannot be unsafe",
            ),
            (
                quote!(
                    fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8, m: u8) {}
                ),
                "at most 12 arguments: put them into a struct",
            ),
            (
                quote!(
                    struct NotAFunction;
                ),
                "expected",
            ),
        ] {
            let message = refused(none(), item);
            assert!(message.contains(said), "{message}");
        }
        for (options, said) in [
            (quote!(nmae = "x"), "the only option is `name = \"…\"`"),
            (quote!(name = "a name"), "a name has 1 to 128 letters"),
            (quote!(name = ""), "a name has 1 to 128 letters"),
            (quote!(name = 3), "expected string literal"),
        ] {
            let message = refused(
                options,
                quote!(
                    fn f() {}
                ),
            );
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn functions_of_all_shapes_are_routines() {
        for item in [
            quote!(
                fn f() {}
            ),
            quote!(
                pub(crate) async fn f(a: u8, b: Vec<String>) -> Result<u8, String> {
                    Ok(a)
                }
            ),
            quote!(
                fn f(mut a: Vec<u8>) -> Option<u8> {
                    a.pop()
                }
            ),
        ] {
            expand(quote!(name = "its-name"), item).expect("it is one");
        }
    }
}
