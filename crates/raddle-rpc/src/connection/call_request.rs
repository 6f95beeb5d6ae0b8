//! A call before its worker, and thereby its encoding, is known.

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

/// A call before its worker is known. Cheap to clone, because it may be offered to several.
#[derive(Clone)]
pub struct CallRequest(Arc<CallRequestInner>);

struct CallRequestInner {
    /// In MessagePack.
    call: v1::Call,
    /// Transcodes the arguments to JSON, for a worker that reads nothing else.
    transcode: ArgsTranscoder,
    values: ContextValues,
    /// Affinity key: sticky balancers send calls with the same key to the same worker.
    key: Option<u64>,
}

impl CallRequest {
    /// Makes a request from `call`, whose arguments are set, with the context `values`.
    pub(crate) fn new(
        call: v1::Call,
        transcode: ArgsTranscoder,
        values: ContextValues,
        key: Option<u64>,
    ) -> Result<Self, String> {
        let (arguments, encoding) = (call.arguments.len(), Encoding::MessagePack);
        check_size(arguments)?;
        let context = context::encode_values(&values, encoding)?;
        let call = v1::Call {
            context,
            encoding: encoding::number(encoding),
            ..call
        };
        Ok(Self(Arc::new(CallRequestInner {
            call,
            transcode,
            values,
            key,
        })))
    }

    /// The name of the routine.
    pub fn routine(&self) -> &str {
        &self.0.call.routine
    }

    /// The arguments in MessagePack, whatever the worker reads.
    pub fn arguments(&self) -> &Bytes {
        &self.0.call.arguments
    }

    /// Number of routines in the chain of nested calls that leads to this call.
    pub(super) fn depth(&self) -> usize {
        self.0.call.depth as usize
    }

    /// Affinity key: sticky balancers send calls with the same key to the same worker.
    pub fn key(&self) -> Option<u64> {
        self.0.key
    }

    /// Encodes the call for a worker that reads `encoding`.
    pub(super) fn encode_for(&self, encoding: Encoding) -> Result<v1::Call, RpcError> {
        match encoding {
            Encoding::MessagePack => Ok(self.0.call.clone()),
            Encoding::Json => self
                .encode_json()
                .map_err(|error| RpcError::refused(Code::InvalidArgument, error)),
        }
    }

    fn encode_json(&self) -> Result<v1::Call, String> {
        let CallRequestInner {
            call,
            transcode,
            values,
            ..
        } = &*self.0;
        let arguments = transcode(&call.arguments)?;
        check_size(arguments.len())?;
        Ok(v1::Call {
            arguments: arguments.into(),
            context: context::encode_values(values, Encoding::Json)?,
            encoding: encoding::number(Encoding::Json),
            ..call.clone()
        })
    }
}

fn check_size(arguments: usize) -> Result<(), String> {
    if arguments > MAX_VALUE {
        return Err(format!(
            "the arguments have {arguments} bytes, and the limit is {MAX_VALUE}"
        ));
    }
    Ok(())
}

impl fmt::Debug for CallRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRequest")
            .field("routine", &self.routine())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::routine::EncodedArgs;

    use super::*;

    fn call(arguments: EncodedArgs) -> CallRequest {
        let transcode = arguments.rewrite();
        let call = v1::Call {
            arguments: arguments.finish().unwrap().into(),
            ..v1::Call::default()
        };
        CallRequest::new(call, transcode, ContextValues::default(), None).unwrap()
    }

    #[test]
    fn transcodes_a_call_to_json() {
        let call = call(EncodedArgs::new(2).argument("a", &1).argument("b", &"x"));
        assert_eq!(
            call.encode_for(Encoding::MessagePack)
                .unwrap()
                .arguments
                .as_ref(),
            b"\x92\x01\xa1x"
        );
        let json = call.encode_for(Encoding::Json).unwrap();
        assert_eq!(
            (json.arguments.as_ref(), json.encoding()),
            (&br#"[1,"x"]"#[..], v1::Encoding::Json)
        );
    }

    #[test]
    fn reports_values_that_json_cannot_express() {
        let error = call(EncodedArgs::new(1).argument("a", &f32::NAN))
            .encode_for(Encoding::Json)
            .unwrap_err();
        assert_eq!(
            (error.code, error.may_have_begun),
            (Code::InvalidArgument, false)
        );
        assert!(error.message.contains("NaN"), "{error}");
    }
}
