//! The operator's interface: the one place where routers are merged and layers applied.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::Uri,
    middleware,
};
use raddle_broker::Broker;
use tower::ServiceExt as _;

use crate::{Options, api, audit, auth, live, pages, probe_routes, route, state::AppState};

/// The largest body of a request. A batch of specs is the largest.
const MAX_BODY: usize = 20 << 20;

/// The operator's interface to a broker.
#[derive(Clone)]
pub struct App {
    state: AppState,
}

impl App {
    /// Makes the interface.
    pub fn new(broker: Arc<dyn Broker>, options: Options) -> Self {
        Self {
            state: AppState::new(broker, options),
        }
    }

    /// The router, to be served or mounted.
    pub fn router(&self) -> Router {
        let state = &self.state;
        let probes = match state.options.has_open_metrics {
            true => probe_routes::OPEN,
            false => probe_routes::CLOSED,
        };
        let all = Router::new()
            .merge(route::router(state, "/api/v1", api::ROUTES))
            .merge(route::router(state, "", auth::ROUTES))
            .merge(route::router(state, "", pages::ROUTES))
            .merge(route::router(state, "", live::ROUTES))
            .merge(route::router(state, "", probes))
            .merge(pages::assets())
            .fallback(api::no_route)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            // The last layer is the first that a request meets.
            .layer(middleware::from_fn_with_state(
                state.clone(),
                auth::check_host,
            ))
            .layer(middleware::from_fn_with_state(state.clone(), audit::record))
            .layer(middleware::map_response(auth::add_headers))
            .with_state(state.clone());
        match state.options.prefix.as_str() {
            "" => all,
            prefix => {
                // `nest` does not serve the root with a slash at its end.
                let root = all.clone();
                let at_root = tower::service_fn(move |mut request: Request| {
                    let query = request.uri().query().map(|query| format!("/?{query}"));
                    let path = query.as_deref().unwrap_or("/");
                    // Over HTTP/2 the URI names the host, too.
                    let mut parts = request.uri().clone().into_parts();
                    parts.path_and_query = path.parse().ok();
                    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
                    root.clone().oneshot(request)
                });
                Router::new()
                    .nest(prefix, all)
                    .route_service(&format!("{prefix}/"), at_root)
            }
        }
    }

    /// Goes on with operations that a killed server has left.
    pub async fn resume_operations(&self) {
        api::operations::resume_all(&self.state).await;
    }

    /// Ends all open streams. To be called before a graceful stop, which waits for them.
    pub fn stop(&self) {
        self.state.stop();
    }
}

/// The operator's interface to a broker as a router, to mount in a program.
///
/// Without [`Options::prefix`] it is served at the root of the router around it. To mount it below
/// a path, set the prefix and merge the router: its links begin with the prefix.
pub fn router(broker: Arc<dyn Broker>, options: Options) -> Router {
    App::new(broker, options).router()
}
