//! Redis URLs: the address of a server and the options for it, as documented for `--queue-url`.

use std::{fmt, path::PathBuf, time::Duration};

use raddle_broker::engine::FOREVER;

/// The address of a server, and the options for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisAddress {
    /// The URL as it was written, including the password.
    whole: Password,
    pub(super) place: ServerLocation,
    pub(super) login: Login,
    /// Certificate files, if connections are encrypted; for sentinels too.
    pub(super) tls: Option<Tls>,
    pub(super) database: i64,
    /// Keeps systems apart that share a server.
    pub(super) namespace: String,
    pub(super) options: Options,
}

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerLocation {
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    Sentinel {
        hosts: Vec<(String, u16)>,
        master: String,
        login: Login,
    },
}

/// A user name and password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
}

/// Certificate files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// The trusted certificate authorities; those of the system if `None`.
    pub(super) ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

/// The options of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// The first and the longest pause before a reconnection.
    pub(super) initial: Duration,
    pub(super) max: Duration,
    /// How long a call waits for a server that is away, if the URL says so.
    give_up_after: Option<Duration>,
    /// How long it waits otherwise.
    usual_patience: Duration,
    /// Whether the first connection waits for the server too.
    pub(super) waits_to_open: bool,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    /// The number of replicas that must have a submission or completion before it is acknowledged.
    pub(super) wait_replicas: u32,
    /// Whether it must be synced to the server's disk too.
    pub(super) wait_aof: bool,
    /// Whether a server that stores nothing on disk is accepted.
    pub(super) volatile: bool,
    /// How many bytes of each output stream of an attempt are stored, in the server's memory. The
    /// rest is counted in the report and logged as lost.
    pub(super) max_output: u64,
}

/// A password; `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(pub(super) String);

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const DEFAULT_NAMESPACE: &str = "default";
const MIB: u64 = 1024 * 1024;
const DEFAULT_MAX_OUTPUT: u64 = 64 * MIB;
/// The largest value of a Redis server (`proto-max-bulk-len`).
pub(super) const MAX_OUTPUT: u64 = 512 * MIB;

impl Default for Options {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(50),
            max: Duration::from_secs(2),
            give_up_after: None,
            usual_patience: Duration::from_secs(30),
            waits_to_open: false,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            wait_replicas: 0,
            wait_aof: false,
            volatile: false,
            max_output: DEFAULT_MAX_OUTPUT,
        }
    }
}

impl Options {
    /// How long a call waits for a server that is away.
    pub(super) fn patience(&self) -> Duration {
        self.give_up_after.unwrap_or(self.usual_patience)
    }
}

impl RedisAddress {
    /// Waits without a limit for a server that is away, unless the URL sets one; with `opens`, for
    /// the first connection too.
    pub fn patient(mut self, opens: bool) -> Self {
        (self.options.usual_patience, self.options.waits_to_open) = (FOREVER, opens);
        self
    }

    /// Parses a URL. `None` if its scheme is not a Redis scheme; the reason without the password if
    /// the rest is invalid.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let (scheme, rest) = text.split_once(':')?;
        let parse: fn(&str) -> Result<Self, String> = match scheme {
            "redis" => |rest| network(rest, false),
            "rediss" => |rest| network(rest, true),
            "redis+sentinel" => |rest| sentinel(rest, false),
            "rediss+sentinel" => |rest| sentinel(rest, true),
            "redis+unix" => unix,
            _ => return None,
        };
        Some(parse(rest).map(|address| Self {
            whole: Password(text.into()),
            ..address
        }))
    }

    /// The URL as it was written, including the password.
    pub fn secret(&self) -> &str {
        &self.whole.0
    }

    /// Whether the server is reached over a network.
    pub fn is_on_network(&self) -> bool {
        !matches!(self.place, ServerLocation::Unix(_))
    }

    /// Whether the URL contains a password.
    pub fn has_password(&self) -> bool {
        let of_sentinel = match &self.place {
            ServerLocation::Sentinel { login, .. } => login.password.is_some(),
            _ => false,
        };
        of_sentinel || self.login.password.is_some()
    }

    fn new(place: ServerLocation, tls: bool) -> Self {
        let (whole, namespace) = (Password(String::new()), DEFAULT_NAMESPACE.into());
        let (login, tls, options) = (Login::default(), tls.then(Tls::default), Options::default());
        Self {
            whole,
            place,
            login,
            tls,
            database: 0,
            namespace,
            options,
        }
    }

    fn with_user(mut self, user: Option<&str>) -> Result<Self, String> {
        let Some(user) = user else { return Ok(self) };
        let (name, password) = user
            .split_once(':')
            .map_or((user, None), |(name, password)| (name, Some(password)));
        self.login.user = Some(decode(name)?).filter(|name| !name.is_empty());
        self.login.password = password.map(decode).transpose()?.map(Password);
        Ok(self)
    }

    fn with_database(mut self, path: &str) -> Result<Self, String> {
        if !path.is_empty() {
            self.database = database(path)?;
        }
        Ok(self)
    }

    fn with_query(mut self, query: Option<&str>) -> Result<Self, String> {
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| "a parameter has no value: write name=value".to_owned())?;
            self.set(name, decode(value)?)?;
        }
        match &self.tls {
            Some(Tls { cert, key, .. }) if cert.is_some() != key.is_some() => {
                Err("cert and key go together".into())
            }
            _ => Ok(self),
        }
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        let options = &mut self.options;
        match name {
            "namespace" => self.namespace = namespace(value)?,
            "db" => self.database = database(&value)?,
            "user" => self.login.user = Some(value),
            "password" => self.login.password = Some(Password(value)),
            "sentinel_user" | "sentinel_password" => {
                let ServerLocation::Sentinel { login, .. } = &mut self.place else {
                    return Err(format!("{name} is for redis+sentinel://"));
                };
                match name {
                    "sentinel_user" => login.user = Some(value),
                    _ => login.password = Some(Password(value)),
                }
            }
            "ca" | "cert" | "key" => {
                let Some(tls) = &mut self.tls else {
                    return Err(format!("{name} is for rediss:// and rediss+sentinel://"));
                };
                let file = match name {
                    "ca" => &mut tls.ca,
                    "cert" => &mut tls.cert,
                    _ => &mut tls.key,
                };
                *file = Some(value.into());
            }
            "initial" => options.initial = span(name, &value)?,
            "max" => options.max = span(name, &value)?,
            "give_up_after" => options.give_up_after = Some(span(name, &value)?),
            "connect_timeout" => options.connect_timeout = span(name, &value)?,
            "response_timeout" => options.response_timeout = span(name, &value)?,
            "wait_replicas" => {
                options.wait_replicas = value
                    .parse()
                    .map_err(|_| "wait_replicas is a number of replicas".to_owned())?;
            }
            "wait_aof" => options.wait_aof = yes(name, &value)?,
            "volatile" => options.volatile = yes(name, &value)?,
            "max_output" => options.max_output = size(name, &value)?,
            _ => {
                let known = "namespace, db, user, password, sentinel_user, sentinel_password, ca, cert, key, initial, max, give_up_after, \
                             connect_timeout, response_timeout, \
                             wait_replicas, wait_aof, volatile, max_output";
                return Err(format!("'{name}' is not a parameter: there are {known}"));
            }
        }
        Ok(())
    }
}

/// `//[user[:password]@]host[:port][/db][?…]`.
fn network(rest: &str, tls: bool) -> Result<RedisAddress, String> {
    let (authority, path, query) = split(rest)?;
    let (user, host) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(user, host)| (Some(user), host));
    let (host, port) = host_and_port(host, PORT)?;
    RedisAddress::new(ServerLocation::Tcp { host, port }, tls)
        .with_user(user)?
        .with_database(path)?
        .with_query(query)
}

/// `//[user[:password]@]host[:port][,host[:port]…]/master[/db][?…]`.
fn sentinel(rest: &str, tls: bool) -> Result<RedisAddress, String> {
    let (authority, path, query) = split(rest)?;
    let (user, hosts) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(user, hosts)| (Some(user), hosts));
    let hosts = hosts
        .split(',')
        .map(|host| host_and_port(host, SENTINEL_PORT))
        .collect::<Result<Vec<_>, _>>()?;
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err("the name of the master is missing: redis+sentinel://HOST:PORT/MASTER".into());
    }
    let place = ServerLocation::Sentinel {
        hosts,
        master: decode(master)?,
        login: Login::default(),
    };
    RedisAddress::new(place, tls)
        .with_user(user)?
        .with_database(database)?
        .with_query(query)
}

/// `PATH[?…]`.
fn unix(rest: &str) -> Result<RedisAddress, String> {
    let (path, query) = rest
        .split_once('?')
        .map_or((rest, None), |(path, query)| (path, Some(query)));
    let path = decode(path.strip_prefix("//").unwrap_or(path))?;
    if path.is_empty() {
        return Err("the path of the socket is missing: redis+unix:PATH".into());
    }
    RedisAddress::new(ServerLocation::Unix(path.into()), false).with_query(query)
}

fn split(rest: &str) -> Result<(&str, &str, Option<&str>), String> {
    let rest = rest
        .strip_prefix("//")
        .ok_or("two slashes are missing after the scheme")?;
    let (rest, query) = rest
        .split_once('?')
        .map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((authority, path.trim_end_matches('/'), query))
}

fn host_and_port(text: &str, default: u16) -> Result<(String, u16), String> {
    let no_port = || "the port is not a number from 1 to 65535".to_owned();
    // An IPv6 address is in brackets, because of its colons.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(no_port)?)),
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(default), |port| port.parse().map_err(|_| no_port()))?;
    if host.is_empty() || port == 0 {
        return Err("the host is missing: redis://HOST:PORT".into());
    }
    Ok((host.into(), port))
}

fn database(text: &str) -> Result<i64, String> {
    text.parse::<u16>()
        .map(i64::from)
        .map_err(|_| "the database is not a number: redis://HOST:PORT/NUMBER".into())
}

fn namespace(text: String) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fits {
        Ok(text)
    } else {
        Err("the namespace is not 1 to 64 letters, digits, and . _ -".into())
    }
}

fn span(name: &str, text: &str) -> Result<Duration, String> {
    let span: raddle_model::HumanDuration = text
        .parse()
        .map_err(|_| format!("{name} is not a time: write 500ms, 5s or 2m"))?;
    Ok(span.0)
}

/// Parses a number of bytes, with or without a unit.
fn size(name: &str, text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1024),
        Some((at, 'M' | 'm')) => (&text[..at], MIB),
        Some((at, 'G' | 'g')) => (&text[..at], 1024 * MIB),
        _ => (text, 1),
    };
    let bytes = digits
        .parse::<u64>()
        .map_err(|_| format!("{name} is not a size: write 64M, or a number of bytes"))?;
    let bytes = bytes.saturating_mul(unit);
    if bytes > MAX_OUTPUT {
        Err(format!(
            "{name} is at most 512M: a Redis value cannot be longer"
        ))
    } else {
        Ok(bytes)
    }
}

fn yes(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "yes" | "true" | "1" => Ok(true),
        "no" | "false" | "0" => Ok(false),
        _ => Err(format!("{name} is yes or no")),
    }
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (high, low) = (digit(), digit());
        let (Some(high), Some(low)) = (high, low) else {
            return Err("a % is not followed by two hexadecimal digits: write %25 for it".into());
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| "a percent-encoded part is not UTF-8".into())
}

/// Without the password: for logs and errors.
impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = |(host, port): (&String, u16)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let tls = if self.tls.is_some() { "s" } else { "" };
        let user = self
            .login
            .user
            .as_ref()
            .map_or(String::new(), |user| format!("{user}@"));
        match &self.place {
            ServerLocation::Tcp { host: name, port } => write!(
                f,
                "redis{tls}://{user}{}/{}",
                host((name, *port)),
                self.database
            )?,
            ServerLocation::Unix(path) => write!(f, "redis+unix:{}", path.display())?,
            ServerLocation::Sentinel { hosts, master, .. } => {
                let hosts: Vec<_> = hosts
                    .iter()
                    .map(|(name, port)| host((name, *port)))
                    .collect();
                write!(
                    f,
                    "redis{tls}+sentinel://{user}{}/{master}/{}",
                    hosts.join(","),
                    self.database
                )?;
            }
        }
        write!(f, "?namespace={}", self.namespace)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a password)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RedisAddress {
        RedisAddress::parse(text)
            .expect("a scheme of ours")
            .unwrap_or_else(|reason| panic!("{text}: {reason}"))
    }

    #[test]
    fn parses_every_form() {
        for (text, shown) in [
            (
                "redis://127.0.0.1",
                "redis://127.0.0.1:6379/0?namespace=default",
            ),
            (
                "redis://me:pass@host:7000/3?namespace=x",
                "redis://me@host:7000/3?namespace=x",
            ),
            (
                "redis://:p%40ss@[::1]:7000/",
                "redis://[::1]:7000/0?namespace=default",
            ),
            (
                "rediss://host/1?ca=/etc/ca.pem",
                "rediss://host:6379/1?namespace=default",
            ),
            (
                "redis+sentinel://a,b:7/main/2",
                "redis+sentinel://a:26379,b:7/main/2?namespace=default",
            ),
            (
                "rediss+sentinel://a/main?ca=x&cert=y&key=z",
                "rediss+sentinel://a:26379/main/0?namespace=default",
            ),
            (
                "redis+unix:/run/redis.sock?db=4",
                "redis+unix:/run/redis.sock?namespace=default",
            ),
        ] {
            assert_eq!(parse(text).to_string(), shown, "{text}");
        }
        let address = parse("redis://:p%40ss@host?give_up_after=2m&wait_replicas=1&volatile=yes");
        assert_eq!(
            address.login,
            Login {
                user: None,
                password: Some(Password("p@ss".into()))
            }
        );
        assert_eq!(address.options.patience(), Duration::from_secs(120));
        assert_eq!(
            address.clone().patient(true).options.patience(),
            Duration::from_secs(120),
            "the URL takes precedence"
        );
        assert_eq!(
            parse("redis://host").patient(true).options.patience(),
            FOREVER
        );
        assert!(address.options.volatile && address.options.wait_replicas == 1);
        for (text, bytes) in [("1000", 1000), ("4K", 4096), ("512M", 512 << 20), ("0G", 0)] {
            assert_eq!(
                parse(&format!("redis://host?max_output={text}"))
                    .options
                    .max_output,
                bytes,
                "{text}"
            );
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, word) in [
            ("redis:host", "slashes"),
            ("redis://", "host"),
            ("redis://host:port", "port"),
            ("redis://host/a", "database"),
            ("redis://host?namespace=a b", "namespace"),
            ("redis://host?size=3", "not a parameter"),
            ("redis://host?max=soon", "not a time"),
            ("redis://host?max_output=much", "not a size"),
            ("redis://host?max_output=1G", "at most 512M"),
            ("redis://host?ca=x", "rediss"),
            ("redis+sentinel://host/main?cert=x", "rediss+sentinel"),
            ("rediss://host?cert=x", "together"),
            ("redis://host?sentinel_password=x", "redis+sentinel"),
            ("redis://a%4@host", "%25"),
            ("redis+sentinel://host", "master"),
            ("redis+unix:", "socket"),
        ] {
            let refused = RedisAddress::parse(text)
                .expect("a scheme of ours")
                .expect_err(text);
            assert!(refused.contains(word), "{text}: {refused}");
        }
        assert!(RedisAddress::parse("http://host").is_none());
    }

    #[test]
    fn never_shows_the_password() {
        for text in [
            "redis://me:secret@host",
            "rediss://:secret@host",
            "redis+unix:/x?password=secret",
            "redis+sentinel://a/m?sentinel_password=secret",
        ] {
            let address = parse(text);
            assert!(
                address.has_password() && !format!("{address} {address:?}").contains("secret"),
                "{address:?}"
            );
        }
        for text in ["redis://me:secret@host:port", "redis:me:secret@host"] {
            assert!(
                !RedisAddress::parse(text)
                    .unwrap()
                    .unwrap_err()
                    .contains("secret")
            );
        }
    }
}
