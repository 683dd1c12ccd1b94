# SPDX-License-Identifier: Apache-2.0
"""Exports modules for agpcs.torch.export: by PyTorch's newer exporter, or by TorchScript."""

import contextlib
import inspect
import io
import os
import warnings

import torch

from agpcs import _new_file
from agpcs._errors import UsageError
from agpcs._torch_explain import seeing

# Where the values of weights would lie that a file has without values. No such file is written.
_NO_VALUES = "weights.absent"
# The note of PyTorch's newer exporter that tells from which call a node was made.
_FX_NODE = "pkg.torch.onnx.fx_node"
# Our note of the node of torch.export's graph that an ONNX node is a part of. No cut of a plan divides such a node.
_NODE = "agpcs.node"


@contextlib.contextmanager
def training(module):
    """Puts the module into training mode, and restores the mode of each part."""
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _notes(module):
    """Returns what the importer reads: names of parameters, frozen parameters and buffers, one a line."""
    every = {"remove_duplicate": False} if "remove_duplicate" in _arguments(module.named_parameters) else {}
    named = list(module.named_parameters(**every))
    notes = {
        "agpcs.parameters": [name for name, value in named if value.requires_grad],
        "agpcs.frozen": [name for name, value in named if not value.requires_grad],
        "agpcs.buffers": [name for name, _ in module.named_buffers()],
    }
    return {key: "\n".join(names) for key, names in notes.items() if names}


def _arguments(function):
    return inspect.signature(function).parameters


def _has_values(module):
    return not any(_is_empty(tensor) for tensor in [*module.parameters(), *module.buffers()])


def _is_empty(tensor):
    return tensor.is_meta or "FakeTensor" in (type(tensor).__name__, type(tensor.data).__name__)


def _tensors(tree):
    from torch.utils import _pytree
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]


def _batch_of(examples):
    tensors = _tensors(examples)
    if not tensors:
        raise UsageError("agpcs.torch.export needs example inputs with at least one tensor that has a batch axis")
    return tensors[0].shape[0]


def _with_two_samples(examples):
    """Repeats the only sample of examples: PyTorch takes an extent of 1 for a constant."""
    from torch.utils import _pytree
    if _batch_of(examples) != 1:
        return examples

    def repeat(leaf):
        several = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == 1
        return torch.cat([leaf, leaf]) if several else leaf

    return _pytree.tree_map(repeat, examples)


@contextlib.contextmanager
def faked(module, device=None):
    """Lets a module whose tensors are on the device "meta", all or some, pass for one on `device`, by default the CPU: for
    "meta" PyTorch exports other operators. Nothing gets values."""
    from torch._subclasses import FakeTensorMode
    held = [(table, name, tensor) for part in module.modules() for table in (part._parameters, part._buffers)
            for name, tensor in table.items() if tensor is not None]
    if not any(tensor.is_meta and _fake_mode(tensor) is None for _, _, tensor in held):
        yield
        return
    for name, part in module.named_modules():
        for own, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise UsageError(f"'{name}{'.' if name else ''}{own}' is a tensor on the device 'meta', and neither a parameter "
                                 "nor a buffer\n  hint: register_buffer(..., persistent=False)")
    mode, made = FakeTensorMode(), {}
    for table, name, tensor in held:
        if id(tensor) not in made:
            fake = _passing(mode, tensor.detach(), device or "cpu")
            made[id(tensor)] = (torch.nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter)
                                else fake)
        table[name] = made[id(tensor)]
    try:
        yield
    finally:
        for table, name, tensor in held:
            table[name] = tensor


def _passing(mode, tensor, device):
    """A tensor of a FakeTensorMode like `tensor`, on `device`."""
    if not tensor.is_meta:
        return mode.from_tensor(tensor).to(device)
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _fake_mode(tensor):
    return getattr(tensor.data, "fake_mode", None)


def _examples(module, examples):
    """Example inputs as PyTorch's exporter takes them: without values if the module has none, and of two samples at least."""
    from torch.utils import _pytree
    examples = _with_two_samples(examples)
    fake = next((tensor for tensor in (*module.parameters(), *module.buffers()) if _fake_mode(tensor) is not None), None)
    if fake is None:
        return examples
    return _pytree.tree_map(
        lambda x: _passing(_fake_mode(fake), x, fake.device) if isinstance(x, torch.Tensor) else x, examples)


def _dynamic_shapes(module, inputs, kwargs):
    """Returns the argument of torch.onnx.export that makes axis 0 of each input the batch."""
    from torch.utils import _pytree
    batch = _batch_of((inputs, kwargs))

    def axes(leaf):
        batched = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch
        return {0: "batch"} if batched else None

    bound = inspect.signature(module.forward).bind(*inputs, **kwargs).arguments
    return {name: _pytree.tree_map(axes, value) for name, value in bound.items()}


def by_dynamo(module, inputs, kwargs, path, input_names, output_names, weights, options):
    """Exports by torch.onnx.export(..., dynamo=True, optimize=False)."""
    has_values = _has_values(module)
    with faked(module):
        inputs, kwargs = _examples(module, (inputs, kwargs))
        _, program = _converted(module, inputs, kwargs, input_names, output_names, options)
    if not has_values or not weights:
        return _write(_without_values(program), path)
    if isinstance(path, (str, os.PathLike)):
        return program.save(path, external_data=options.get("external_data", True))
    return _write(program.model_proto.SerializeToString(), path)


def _check_options(options):
    """Refuses options that nobody knows: what we do not know ourselves goes to torch.onnx.export."""
    for name in options:
        if name not in _arguments(torch.onnx.export):
            raise UsageError(f"unknown option '{name}'\n"
                             "  hint: options that agpcs.torch does not know go to torch.onnx.export, which has none of that name")


def _converted(module, inputs, kwargs, input_names, output_names, options):
    """Returns what torch.export makes of the module, and PyTorch's ONNXProgram of that, with our notes."""
    _check_options(options)
    settings = {"dynamo": True, "optimize": False, "verbose": False, **options}
    if input_names is not None:
        settings["input_names"] = list(input_names)
    if output_names is not None:
        settings["output_names"] = list(output_names)
    settings.setdefault("dynamic_shapes", _dynamic_shapes(module, inputs, kwargs))
    from torch.nn.attention import SDPBackend, sdpa_kernel
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*while it is in training mode.*")
            warnings.filterwarnings("ignore", message=".*The axis name: batch will not be used.*")
            # Attention has the same strides in all passes of PyTorch's exporter, though some of them know no gradients.
            with _noting_programs() as made, sdpa_kernel(SDPBackend.MATH), seeing(module) as seen:
                program = torch.onnx.export(module, inputs, None, kwargs=kwargs, **settings)
    except ModuleNotFoundError as error:
        raise RuntimeError(f"agpcs.torch.export needs the package '{error.name}' with PyTorch {torch.__version__}: "
                           f"pip install onnxscript") from error
    seen.warn(made[-1])
    program.model.metadata_props.update(_notes(module))
    _mark_batch_statistics(program.model)
    _note_nodes(program)
    _use_first_names(program.model, module)
    return made[-1], program


@contextlib.contextmanager
def _noting_programs():
    """Yields a list of what PyTorch's exporter lets torch.export make, so that graph and file are of one program."""
    export, made = torch.export.export, []

    def noting(*args, **kwargs):
        made.append(export(*args, **kwargs))
        _let_views_copy(made[-1])
        return made[-1]

    torch.export.export = noting
    try:
        yield made
    finally:
        torch.export.export = export


def _let_views_copy(program):
    """Makes views reshapes, which copy where they have to. torch.export writes a module's `reshape` as a view if the strides
    allow that which it computes, and those of attention depend on the kernel that a step takes."""
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default


def captured(module, inputs, input_names, output_names, options, device=None):
    """Returns what torch.export makes of the module, its ONNXProgram, and the bytes of the file that `by_dynamo` would
    write of that without values. `device` is that of a module on the device "meta"."""
    with faked(module, device):
        inputs, _ = _examples(module, (inputs, {}))
        exported, program = _converted(module, inputs, {}, input_names, output_names, options)
    return exported, program, _without_values(program)


def origins(program):
    """Returns, by each value of an ONNXProgram, the name of the node of torch.export's graph that computes it."""
    return {output.name: node.metadata_props[_NODE] for node in program.model.graph if _NODE in node.metadata_props
            for output in node.outputs}


def inputs(program):
    """Returns the names that an ONNXProgram has for the module's inputs, in their order."""
    return [value.name for value in program.model.graph.inputs]


def _without_values(program):
    _drop_values(program.model)
    return program.model_proto.SerializeToString()


def _note_nodes(program):
    """Notes of each ONNX node which node of torch.export's graph it is a part of. PyTorch's own note names the node of
    the decomposed graph. If, Loop and Scan get no note, so that plans may cut between their iterations."""
    import onnx_ir
    sources = {node.name: node.meta.get("from_node") for node in program.exported_program.graph.nodes}
    for node in program.model.graph:
        made_of = sources.get(node.metadata_props.get(_FX_NODE, "").partition(" ")[0].lstrip("%"))
        has_graph = any(attribute.type == onnx_ir.AttributeType.GRAPH for attribute in node.attributes.values())
        if made_of and not has_graph:
            node.metadata_props[_NODE] = made_of[-1].name


def _mark_batch_statistics(model):
    """Marks batch normalization that takes the batch's statistics: PyTorch's exporter writes both kinds alike."""
    import onnx_ir
    for node in model.graph:
        if node.op_type == "BatchNormalization" and "_legit_functional." in node.metadata_props.get(_FX_NODE, ""):
            node.attributes.add(onnx_ir.AttrInt64("training_mode", 1))
            node.resize_outputs(3)  # with this attribute, ONNX asks for the new statistics, too
            for output, name in zip(node.outputs[1:], ("mean", "variance")):
                output.name = f"{node.outputs[0].name}.running_{name}"


def _use_first_names(model, module):
    """Calls a tied parameter as named_parameters() does: PyTorch's exporter may take another of its names."""
    first = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(value), name)
        if own != name and name in model.graph.initializers and own not in model.graph.initializers:
            model.graph.initializers[name].name = own


def _drop_values(model):
    """Makes initializers refer to a file that is not there, so that only their shapes are left: floating tensors, and
    whatever has no values itself. Single numbers stay if they can."""
    import onnx_ir
    offset = 0
    for initializer in model.graph.initializers.values():
        value = initializer.const_value
        if value is None:
            continue
        if _is_real(value) and (value.size == 1 or not value.dtype.is_floating_point()):
            continue
        initializer.const_value = onnx_ir.ExternalTensor(_NO_VALUES, offset, value.nbytes, value.dtype,
                                                         shape=value.shape, name=initializer.name)
        offset += value.nbytes


def _is_real(value):
    raw = getattr(value, "raw", None)
    return not (isinstance(raw, torch.Tensor) and _is_empty(raw))


def by_torchscript(module, inputs, kwargs, path, input_names, output_names, weights, options):
    """Exports by TorchScript, the only exporter before PyTorch 2.5."""
    if not _has_values(module) or not weights:
        raise RuntimeError(f"agpcs.torch.export writes a file without values with PyTorch 2.6 or newer only, this is "
                           f"{torch.__version__}")
    _check_options(options)
    count = len(inputs) + len(kwargs)
    names = list(input_names) if input_names is not None else [f"input{i}" for i in range(count)]
    settings = {
        "opset_version": 17, "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False,
        "input_names": names, "output_names": list(output_names),
        "dynamic_axes": {name: {0: "batch"} for name in [*names, *output_names]}, **options}
    if "dynamo" in _arguments(torch.onnx.export):
        settings["dynamo"] = False
    file = io.BytesIO()
    try:
        torch.onnx.export(module, (*inputs, kwargs) if kwargs else inputs, file, **settings)
    except torch.onnx.errors.UnsupportedOperatorError as error:
        raise RuntimeError(f"PyTorch {torch.__version__} cannot export this model: {error}\n"
                           f"  hint: PyTorch 2.6 or newer exports it") from error
    _write(file.getvalue() + _serialized(_notes(module)), path)


def _serialized(notes):
    """Returns notes as bytes that can follow those of a model: protobuf joins what is written one after the other."""
    def field(number, payload):
        return bytes([number << 3 | 2]) + _varint(len(payload)) + payload

    entries = (field(1, key.encode()) + field(2, value.encode()) for key, value in notes.items())
    return b"".join(field(14, entry) for entry in entries)  # ModelProto.metadata_props


def _varint(number):
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _write(data, path):
    if hasattr(path, "write"):
        path.write(data)
        return
    _new_file.write(path, data)
