# SPDX-License-Identifier: Apache-2.0
import torch, torchvision, onnx, sys, time
m = torchvision.models.resnet50(weights=None).train()
t=time.time()
torch.onnx.export(m, torch.randn(1,3,224,224), "resnet50.onnx", opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["input"], output_names=["logits"], dynamic_axes={"input":{0:"batch"}})
print("rn50", time.time()-t)
m = torchvision.models.inception_v3(weights=None, aux_logits=True, init_weights=False).train()
torch.onnx.export(m, torch.randn(2,3,299,299), "inception_v3.onnx", opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["input"], output_names=["logits","aux"], dynamic_axes={"input":{0:"batch"}})
