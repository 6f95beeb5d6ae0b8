//! One declaration for each route: its path, its method, the right that it needs, its
//! documentation and its handler.
//!
//! The router, the checks, the OpenAPI document and the test of every route with every role are
//! made from these tables, so no route can exist without a right.

use axum::{Router, middleware, routing::MethodRouter};

use crate::{
    api::hold,
    auth::{Right, authorize},
    state::AppState,
};

/// A route.
pub(crate) struct Route {
    pub(crate) verb: Verb,
    /// Relative to the prefix, in the syntax of axum.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) face: Face,
    /// One line of documentation.
    pub(crate) summary: &'static str,
    pub(crate) parameters: &'static [Parameter],
    /// The body of the request.
    pub(crate) body: Option<&'static str>,
    /// The body of the response.
    pub(crate) returns: &'static str,
    /// Whether a request can wait for a change, and its answer has an `ETag`.
    pub(crate) is_held: bool,
    /// Whether the route changes nothing that is stored, whatever its method.
    pub(crate) is_transient: bool,
    handler: fn() -> MethodRouter<AppState>,
}

/// The method of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    /// The name in lower case.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// A parameter of the query string: its name, and one line of documentation.
pub(crate) type Parameter = (&'static str, &'static str);

/// The parameters of routes whose requests can wait.
const HELD: &[Parameter] = &[
    (
        "wait",
        "Hold the request for a change for so long: 60s at most",
    ),
    (
        "after",
        "The event after which a change counts: the `as_of` or `ETag` of an answer",
    ),
];

/// The condition for the use of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everyone, without sign-in.
    Open,
    /// Those with this right.
    Needs(Right),
    /// Those who are signed in. The handler itself checks the right that the request needs.
    SignedIn,
}

/// How a route speaks: the type of its requests and of its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// JSON, and problems as JSON.
    Api,
    /// Forms, and problems as pages.
    Page,
    /// JSON or forms, and problems as JSON.
    Either,
}

impl Route {
    /// A route of the API. Paths are relative to `/api/v1`.
    pub(crate) const fn api(
        verb: Verb,
        path: &'static str,
        access: Access,
        summary: &'static str,
        handler: fn() -> MethodRouter<AppState>,
    ) -> Self {
        Self {
            verb,
            path,
            access,
            face: Face::Api,
            summary,
            parameters: &[],
            body: None,
            returns: "",
            is_held: false,
            is_transient: false,
            handler,
        }
    }

    /// A route of the pages.
    pub(crate) const fn page(
        verb: Verb,
        path: &'static str,
        access: Access,
        summary: &'static str,
        handler: fn() -> MethodRouter<AppState>,
    ) -> Self {
        Self {
            face: Face::Page,
            ..Self::api(verb, path, access, summary, handler)
        }
    }

    /// Documents the parameters of the query string.
    pub(crate) const fn parameters(mut self, parameters: &'static [Parameter]) -> Self {
        self.parameters = parameters;
        self
    }

    /// Documents the body of the request.
    pub(crate) const fn body(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self
    }

    /// Documents the body of the response.
    pub(crate) const fn returns(mut self, returns: &'static str) -> Self {
        self.returns = returns;
        self
    }

    /// Lets requests wait for a change.
    pub(crate) const fn held(mut self) -> Self {
        self.is_held = true;
        self
    }

    /// Keeps the route in read-only mode: it changes nothing that is stored.
    pub(crate) const fn transient(mut self) -> Self {
        self.is_transient = true;
        self
    }

    /// The documented parameters of the query string.
    pub(crate) fn all_parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        let held = if self.is_held { HELD } else { &[] };
        self.parameters.iter().chain(held)
    }

    /// Makes the route speak otherwise.
    pub(crate) const fn face(mut self, face: Face) -> Self {
        self.face = face;
        self
    }

    /// Whether the route has no place in read-only mode.
    pub(crate) fn changes_data(&self) -> bool {
        self.is_unsafe() && self.access != Access::Open && !self.is_transient
    }

    /// Whether requests may change something, so that their origin matters.
    pub(crate) fn is_unsafe(&self) -> bool {
        self.verb != Verb::Get
    }
}

/// A router of these routes below `base`, with the checks of each in front of it.
pub(crate) fn router(state: &AppState, base: &str, routes: &'static [Route]) -> Router<AppState> {
    routes
        .iter()
        .filter(|route| !(state.options.is_read_only && route.changes_data()))
        .fold(Router::new(), |router, route| {
            let checks = middleware::from_fn_with_state((state.clone(), route), authorize);
            let handler = (route.handler)();
            let held = if route.is_held {
                handler.route_layer(middleware::from_fn_with_state(state.clone(), hold))
            } else {
                handler
            };
            let checked = held.route_layer(checks);
            match (base, route.path) {
                // With and without the slash at its end.
                (base, "/") if !base.is_empty() => router
                    .route(base, checked.clone())
                    .route(&format!("{base}/"), checked),
                (base, path) => router.route(&format!("{base}{path}"), checked),
            }
        })
}
