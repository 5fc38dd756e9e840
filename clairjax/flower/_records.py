"""Between PEFT's state dictionaries and Flower's records; with NumPy and flwr alone."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord


CONFIG = "adapter-config"  # in a ConfigRecord: what adapter_config.json says, as JSON, since Flower's take no None
HALF = "send float16 or float32: bfloat16 does not survive Flower's transport"


def arrays(state: Mapping[str, Any]) -> ArrayRecord:
    """A record of a state dictionary, of NumPy arrays or of anything that NumPy can read, as torch's tensors.

    **Raises:** `ValueError` naming the tensor for bfloat16 and other types that do not survive the transport.

    **Cost:** a copy.

    >>> import numpy as np
    >>> from clairjax.flower import arrays, tensors
    >>> tensors(arrays({"layer.lora_A.weight": np.ones((1, 2), "float16")}))
    {'layer.lora_A.weight': array([[1., 1.]], dtype=float16)}
    """
    return ArrayRecord({key: Array(np.ascontiguousarray(_numpy(key, each))) for key, each in state.items()})


def _numpy(key: str, each: Any) -> np.ndarray:
    try:
        found = np.asarray(each.detach().cpu() if hasattr(each, "detach") else each)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key} must be of a type that NumPy has, got {error}; {HALF}.") from None
    if found.dtype.kind not in "biufc":
        raise ValueError(f"{key} must be of a type that NumPy has, got {found.dtype}; {HALF}.")
    return found


def tensors(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The state dictionary of a record.

    **Raises:** `ValueError` for what is no plain NumPy array, naming the tensor.

    **Cost:** a copy.

    >>> from flwr.app import ArrayRecord
    >>> from clairjax.flower import tensors
    >>> tensors(ArrayRecord())
    {}
    """
    found = {}
    for key, each in record.items():
        try:
            found[key] = each.numpy()
        except Exception as error:  # whatever a node sent as bytes
            raise ValueError(f"tensor {key} must be a NumPy array, got {error}") from None
        if found[key].dtype.kind not in "biufc":
            raise ValueError(f"tensor {key} must be of numbers, got {found[key].dtype}; {HALF}.")
    return found


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a file has it: PEFT's own has sets of names."""
    return dict(json.loads(json.dumps(dict(fields), default=sorted)))


def with_config(config: Mapping[str, Any], fields: Mapping[str, Any]) -> ConfigRecord:
    """A record of its own, so that no message has another's."""
    return ConfigRecord({**config, CONFIG: json.dumps(plain(fields))})
