//! `raddle web token`: the tokens of people and programs.

use jiff::Timestamp;
use raddle_web::auth::{NewToken, Token, add_token, list_tokens, revoke_token};
use serde_json::json;

use crate::{
    args::TokenCommand,
    context::Context,
    error::{Failure, Outcome},
    format,
    table::Table,
};

pub(super) async fn token(context: &Context, command: TokenCommand) -> Outcome {
    let broker = context.open_existing().await?;
    match command {
        TokenCommand::Add {
            name,
            role,
            rights,
            expires,
        } => {
            let expires_at = expires.map(|time| Timestamp::now() + time.0);
            let new = NewToken {
                name: name.clone(),
                role,
                rights,
                expires_at,
            };
            let (id, token) = add_token(&*broker, new).await?;
            let record = json!({ "id": id, "name": name, "role": role, "expires_at": expires_at, "token": token });
            context.note("keep this token: it is not shown again");
            context.show(&record, || format!("{token}\n"))
        }
        TokenCommand::List => {
            let tokens = list_tokens(&*broker).await?;
            context.show(&tokens, || render(&tokens))
        }
        TokenCommand::Revoke { names } => {
            let mut revoked = 0;
            for name in &names {
                match revoke_token(&*broker, name).await? {
                    0 => {
                        let why =
                            format!("there is no token '{name}': see 'raddle web token list'");
                        return Err(Failure::Usage(why));
                    }
                    count => revoked += count,
                }
            }
            context.show(&json!({ "revoked": revoked }), || {
                format!("revoked {}\n", format::count(revoked, "token"))
            })
        }
    }
}

fn render(tokens: &[Token]) -> String {
    let now = Timestamp::now();
    let mut table = Table::new(&["ID", "NAME", "ROLE", "RIGHTS", "EXPIRES"]);
    for token in tokens {
        let rights: Vec<&str> = token.rights().iter().map(|right| right.as_str()).collect();
        let expires = match token.expires_at() {
            None => "-".to_owned(),
            Some(_) if !token.is_valid(now) => "expired".into(),
            Some(at) => format::time(at),
        };
        table.row([
            token.id.to_string(),
            token.name().to_owned(),
            token.role().to_string(),
            rights.join(","),
            expires,
        ]);
    }
    table.render()
}
