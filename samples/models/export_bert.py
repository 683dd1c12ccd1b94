# SPDX-License-Identifier: Apache-2.0
import torch, math, sys
from torch import nn
class Attn(nn.Module):
    def __init__(s,h,a):
        super().__init__(); s.a=a; s.query=nn.Linear(h,h); s.key=nn.Linear(h,h); s.value=nn.Linear(h,h); s.dense=nn.Linear(h,h); s.norm=nn.LayerNorm(h,eps=1e-12); s.drop=nn.Dropout(0.1)
    def split(s,x): b,t,h=x.shape; return x.view(b,t,s.a,h//s.a).transpose(1,2)
    def forward(s,x,mask):
        q,k,v=s.split(s.query(x)),s.split(s.key(x)),s.split(s.value(x))
        p=torch.softmax(q@k.transpose(-1,-2)/math.sqrt(q.size(-1))+mask,-1); p=s.drop(p)
        y=(p@v).transpose(1,2).reshape(x.shape)
        return s.norm(x+s.drop(s.dense(y)))
class Layer(nn.Module):
    def __init__(s,h,a,f):
        super().__init__(); s.attention=Attn(h,a); s.intermediate=nn.Linear(h,f); s.output=nn.Linear(f,h); s.norm=nn.LayerNorm(h,eps=1e-12); s.drop=nn.Dropout(0.1)
    def forward(s,x,mask):
        x=s.attention(x,mask); return s.norm(x+s.drop(s.output(nn.functional.gelu(s.intermediate(x)))))
class Bert(nn.Module):
    def __init__(s,L=12,h=768,a=12,f=3072,v=30522,seq=512,labels=2):
        super().__init__(); s.word=nn.Embedding(v,h); s.position=nn.Embedding(seq,h); s.token_type=nn.Embedding(2,h); s.norm=nn.LayerNorm(h,eps=1e-12); s.drop=nn.Dropout(0.1)
        s.layer=nn.ModuleList([Layer(h,a,f) for _ in range(L)]); s.pooler=nn.Linear(h,h); s.classifier=nn.Linear(h,labels)
    def forward(s,input_ids,attention_mask,token_type_ids):
        pos=torch.arange(input_ids.size(1)).unsqueeze(0)
        x=s.drop(s.norm(s.word(input_ids)+s.position(pos)+s.token_type(token_type_ids)))
        mask=(1.0-attention_mask[:,None,None,:].float())*-10000.0
        for l in s.layer: x=l(x,mask)
        return s.classifier(s.drop(torch.tanh(s.pooler(x[:,0]))))
L,out,ops=int(sys.argv[1]),sys.argv[2],int(sys.argv[3])
h,a,f,v,seq=map(int,sys.argv[4:]) if len(sys.argv)>4 else (768,12,3072,30522,512)
m=Bert(L,h,a,f,v,seq).train(); ids=torch.randint(0,min(v,30000),(2,min(seq,128)))
torch.onnx.export(m,(ids,torch.ones_like(ids),torch.zeros_like(ids)),out,opset_version=ops,training=torch.onnx.TrainingMode.TRAINING,do_constant_folding=False,input_names=["input_ids","attention_mask","token_type_ids"],output_names=["logits"],dynamic_axes={k:{0:"batch"} for k in ["input_ids","attention_mask","token_type_ids","logits"]})
