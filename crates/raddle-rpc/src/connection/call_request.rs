//! A call on its way to a worker, before it is known which one that will be.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use raddle_discovery::encoding;
use raddle_model::routine::{ArgsTranscoder, Encoding};
use raddle_wire::v1;
use tonic::Code;

use crate::{
    RpcError,
    context::{self, ContextValues},
    stream::MAX_VALUE,
};

/// A call on its way to a worker. Cheap to clone: it may have to be offered to several.
#[derive(Clone)]
pub struct CallRequest(Arc<CallRequestInner>);

struct CallRequestInner {
    /// In MessagePack.
    call: v1::Call,
    /// What it takes to write it in JSON, for a worker that reads nothing else.
    rewrite: ArgsTranscoder,
    values: ContextValues,
    /// Calls with the same are to go to the same worker, where a balancer looks at it.
    key: Option<u64>,
}

impl CallRequest {
    /// This call, whose arguments are there. Of its context there are the values alone.
    pub(crate) fn new(
        call: v1::Call,
        rewrite: ArgsTranscoder,
        values: ContextValues,
        key: Option<u64>,
    ) -> Result<Self, String> {
        let (arguments, encoding) = (call.arguments.len(), Encoding::MessagePack);
        fits(arguments)?;
        let context = context::written(&values, encoding)?;
        let call = v1::Call {
            context,
            encoding: encoding::number(encoding),
            ..call
        };
        Ok(Self(Arc::new(CallRequestInner {
            call,
            rewrite,
            values,
            key,
        })))
    }

    /// The name of the routine.
    pub fn routine(&self) -> &str {
        &self.0.call.routine
    }

    /// Its arguments, in MessagePack, whatever its worker reads.
    pub fn arguments(&self) -> &Bytes {
        &self.0.call.arguments
    }

    /// How many routines have called each other up to this call.
    pub(super) fn depth(&self) -> usize {
        self.0.call.depth as usize
    }

    /// Calls with the same key are to go to the same worker.
    pub fn key(&self) -> Option<u64> {
        self.0.key
    }

    /// The call as it is sent to who reads this, if it can be written like that.
    pub(super) fn written_in(&self, encoding: Encoding) -> Result<v1::Call, RpcError> {
        match encoding {
            Encoding::MessagePack => Ok(self.0.call.clone()),
            Encoding::Json => self
                .in_json()
                .map_err(|error| RpcError::refused(Code::InvalidArgument, error)),
        }
    }

    fn in_json(&self) -> Result<v1::Call, String> {
        let CallRequestInner {
            call,
            rewrite,
            values,
            ..
        } = &*self.0;
        let arguments = rewrite(&call.arguments)?;
        fits(arguments.len())?;
        Ok(v1::Call {
            arguments: arguments.into(),
            context: context::written(values, Encoding::Json)?,
            encoding: encoding::number(Encoding::Json),
            ..call.clone()
        })
    }
}

fn fits(arguments: usize) -> Result<(), String> {
    if arguments > MAX_VALUE {
        return Err(format!(
            "the arguments have {arguments} bytes, and at most {MAX_VALUE} can be sent"
        ));
    }
    Ok(())
}

impl fmt::Debug for CallRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("routine", &self.routine())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::routine::EncodedArgs;

    use super::*;

    fn call(arguments: EncodedArgs) -> CallRequest {
        let rewrite = arguments.rewrite();
        let call = v1::Call {
            arguments: arguments.finish().unwrap().into(),
            ..v1::Call::default()
        };
        CallRequest::new(call, rewrite, ContextValues::default(), None).unwrap()
    }

    #[test]
    fn a_call_is_written_in_json_when_somebody_asks_for_it() {
        let call = call(EncodedArgs::new(2).argument("a", &1).argument("b", &"x"));
        assert_eq!(
            call.written_in(Encoding::MessagePack)
                .unwrap()
                .arguments
                .as_ref(),
            b"\x92\x01\xa1x"
        );
        let json = call.written_in(Encoding::Json).unwrap();
        assert_eq!(
            (json.arguments.as_ref(), json.encoding()),
            (&br#"[1,"x"]"#[..], v1::Encoding::Json)
        );
    }

    #[test]
    fn what_json_cannot_say_is_the_callers_to_know() {
        let error = call(EncodedArgs::new(1).argument("a", &f32::NAN))
            .written_in(Encoding::Json)
            .unwrap_err();
        assert_eq!(
            (error.code, error.may_have_begun),
            (Code::InvalidArgument, false)
        );
        assert!(error.message.contains("NaN"), "{error}");
    }
}
