# SPDX-License-Identifier: Apache-2.0
import sys, onnx
from onnx import TensorProto
# Replace the payload of every large initializer by an external-data reference, so that only the structure travels.
src, dst = sys.argv[1:3]
m = onnx.load(src)
off = 0
for t in m.graph.initializer:
    n = 1
    for d in t.dims: n *= d
    size = {TensorProto.FLOAT:4, TensorProto.INT64:8, TensorProto.FLOAT16:2, TensorProto.INT32:4}.get(t.data_type)
    if size is None or n*size <= 1024: continue
    for f in ("raw_data","float_data","int64_data","int32_data"): t.ClearField(f)
    t.data_location = TensorProto.EXTERNAL
    for k,v in (("location","weights.bin"),("offset",str(off)),("length",str(n*size))):
        e = t.external_data.add(); e.key=k; e.value=v
    off += n*size
open(dst,"wb").write(m.SerializeToString())
print(dst, len(m.graph.node), "nodes", off/1e6, "MB of weights left out")
