/*
 * Lowering: from a job to the primitives of one segment, as the stack (transformers + PEFT + bitsandbytes) would
 * execute them. Each function is one piece of those libraries' forward code; it owns its locals as Python would, so
 * that tensors die where Python lets go of them.
 */
#ifndef FTMEM_LOWER_H
#define FTMEM_LOWER_H

#include "families.h"
#include "job.h"
#include "tape.h"

/* Parts of the model, for reports; the order of ftmem__part_name. */
enum {
    FTMEM__PART_EMBEDDING,
    FTMEM__PART_NORM,
    FTMEM__PART_ATTENTION,
    FTMEM__PART_MLP,
    FTMEM__PART_RESIDUAL,
    FTMEM__PART_HEAD,
    FTMEM__PART_LOSS,
    FTMEM__PART_OPTIMIZER,
    FTMEM__PART_BATCH,
    FTMEM__PART_TOWER,
    FTMEM__PART_SSM,
    FTMEM__PART_REFERENCE, /* a model beside the trained one */
    FTMEM__PART_END
};
const char *ftmem__part_name(int32_t part);

/* One parameter tensor of one segment. */
typedef struct ftmem__param {
    int64_t n;              /* elements */
    int64_t rows;           /* of a matrix; 0: a vector */
    int64_t bytes;          /* stored, each tensor rounded to 512 (a quantised weight: with its maxima and tables) */
    int64_t gradient_bytes; /* more than bytes where the gradient is a view that keeps a larger tensor */
    int64_t narrowed_bytes; /* let go of in the first forward, which stores it in a smaller dtype; 0 too where both round to the same */
    bool narrowed;
    int32_t segment; /* index of the segment kind that has it */
    uint8_t dtype, tensor_class, role;
    bool trained;
    int64_t copies; /* equal tensors which this one stands for: of its segment, or outside the stacks */
    bool outside;
    int32_t kernels; /* OR of FTMEM_FUSED_..., job.kernels and what compiling makes of a block */
    bool routed;     /* of the experts that a router chooses from */
    bool base;       /* belongs to the base model (not LoRA, not a saved copy) */
    bool idle;       /* requires a gradient and never gets one: no state either */
} ftmem__param;
enum { FTMEM__MAX_PARAMS = 256 };
typedef struct ftmem__params {
    int32_t count, segment;
    bool full;
    ftmem__param at[FTMEM__MAX_PARAMS];
} ftmem__params;

/* What a job means in numbers, filled once (shape.c). All products are checked there. */
typedef struct ftmem__shape {
    const ftmem_model *model;
    const ftmem_adapter *adapter;
    const ftmem_job *job;
    const ftmem__family *family;
    bool generates;             /* blocks keep keys and values */
    bool forward_only;          /* nothing goes backward */
    int64_t b, s, tokens;       /* rows, sequence, b x s */
    int64_t h, f, q, kv, vocab; /* widths; q = heads x head_dim, kv = kv_heads x head_dim */
    int64_t heads, kv_heads, d, rotary;
    int64_t dv;                      /* of a value head */
    int64_t embedding_width;         /* of the token embedding */
    int32_t dtype;                   /* of what is not quantised, as stored */
    int32_t ends;                    /* the same of embedding, position table and head */
    int32_t compute;                 /* compute dtype of 4-bit linears: the dtype the model was loaded in */
    int32_t stream;                  /* dtype of the residual stream at the first block */
    int32_t mask;                    /* dtype of additive masks and of tables: that of the stream as blocks see it */
    int32_t autocast;                /* 0, FTMEM_BF16, FTMEM_FP16 */
    ftmem__family own;               /* the family as another stack's model code has it; `family` leads here */
    bool merged;                     /* q, k and v are one linear with LoRA for some of them (litgpt LoRAQKVLinear) */
    bool head_quantized, half_state; /* lightning/fabric BitsandbytesPrecision: every linear is 4-bit, and was fp16 when it was quantised */
    bool input_kept;                 /* bitsandbytes before 0.43: a 4-bit linear keeps its input as an attribute */
    int32_t lora_dtype;
    int64_t virtual_tokens;                                  /* of s: put before each row by an adapter */
    bool regularised;                                        /* the loss has a term of the adapters alone (AdaLoRA) */
    int32_t quant;                                           /* FTMEM_QUANT_..., 0: the base is stored plainly */
    bool qlora, lora8, mask_full, mask_sliding;              /* a mask tensor exists for full / sliding layers */
    bool adapted;                                            /* an adapter is trained, the base is frozen */
    bool rest_trained;                                       /* final norm, and what stands outside blocks, embedding and head */
    bool position_trained;                                   /* a learned position table: an embedding as well, but never tied */
    bool head_trained, embed_trained, head_copy, embed_copy; /* copies: modules_to_save */
    bool tower_trained, projector_trained;                   /* the vision tower, and its projector */
    bool head_own_trained;                                   /* what the head has beside a matrix that it may share: a bias, a transform */
    bool tied;                                               /* head and embedding are one tensor */
    bool require_input_grad;                                 /* enable_input_require_grads: the embedding's output requires a gradient */
    bool rotates;                                            /* cos and sin are made */
    bool has_sliding, has_full;                              /* some block has this kind */
    int64_t eval_b;                                          /* rows of an evaluation pass */
    bool mask_cross;                                         /* and for cross-attention */
    bool sided;                                              /* blocks share sides, so the first and the last are kinds of their own */
    bool fed_features;                                       /* the first stack takes features of a fixed length, which are not masked */
    bool causal;                                             /* blocks of a decoder */
    bool crossed;                                            /* blocks attend to the stack before this one */
    bool chunked;                                            /* attention runs image by image, or window by window */
    int64_t grid[2], window, unit;                           /* of an image: merged patches high and wide, of a window's side; patches of a merged one */
    bool image_masks;                                        /* masks of each row's own, which show where its images are */
    bool takes_video;                                        /* the model's forward looks for tokens of videos too, and is given the kinds of all tokens */
    bool scattered;                                          /* what the stack before has made takes the places of tokens */
    bool tower;                                              /* a vision tower, whose rows are images */
    int64_t unread;                                          /* its last blocks whose output nobody reads */
    int64_t taps, tap_first, tap_every; /* of a tower: blocks whose output goes on besides; of the text model: its first blocks, after which they are added */
    int64_t each;                       /* images of a row; 1 elsewhere */
    const struct ftmem__shape *next;    /* of a tower: the text model's */
} ftmem__shape;

/* Values that a block is given beside the stream, or makes for the blocks after it. */
enum {
    FTMEM__SIDE_SOURCE,     /* what the stack before this one has made: keys and values of cross-attention */
    FTMEM__SIDE_BIAS,       /* position bias of self-attention, which the first block computes (modeling_t5.py T5Stack) */
    FTMEM__SIDE_CROSS_BIAS, /* and of cross-attention */
    FTMEM__SIDE_LAYERS,     /* inputs of all layers beside the stream (modeling_gemma4.py project_per_layer_inputs) */
    FTMEM__SIDE_KEYS,       /* keys and values that last blocks take, of full attention and of windows */
    FTMEM__SIDE_VALUES,
    FTMEM__SIDE_WINDOW_KEYS,
    FTMEM__SIDE_WINDOW_VALUES,
    FTMEM__SIDES
};

typedef struct ftmem__quant ftmem__quant; /* quant.h */

/* One segment being lowered. */
typedef struct ftmem__low {
    ftmem__tape *tape;
    const ftmem__shape *shape;
    ftmem__params *params;  /* not NULL: parameters are declared on the way */
    int64_t b, tokens;      /* rows and tokens of this pass (evaluation has its own batch) */
    bool training;          /* dropout is active */
    bool trained;           /* base weights of this block are trained (full fine-tuning) */
    bool adapted;           /* this block has adapters */
    bool first;             /* the first block, where it is another one */
    bool unquantized;       /* bitsandbytes is told to leave this part alone */
    uint8_t kind;           /* of the block: FTMEM__LAYER_... */
    uint8_t mlp;            /* FTMEM__MLP_... */
    const ftmem__var *join; /* residual that attention or MLP add in their own forward, or NULL */
    int32_t kernels;        /* OR of FTMEM_FUSED_..., job.kernels and what compiling makes of a block */
    bool routed;            /* what is declared now belongs to routed experts */
    int64_t copies;         /* what is declared now stands for so many equal tensors, each for its share of the rows; 0: one */
    bool cross;             /* attention looks at the stack before */
    const ftmem__var *bias; /* of positions, which it adds to its scores, or NULL */
    uint8_t given, made;    /* sides that are there already, and those that this segment has made */
    ftmem__var *side;       /* FTMEM__SIDES of them, which the walk owns */
    bool stores, reuses;    /* keys and values: for later blocks, and of an earlier one */
    bool replaces;          /* what earlier ones hold: keys and values of the first forward, in `stored` */
    ftmem__var stored[4];
    int64_t bound_bytes;     /* saved on the way to what it has stored in their place */
    ftmem__var layer;        /* the block's part of FTMEM__SIDE_LAYERS */
    const ftmem__var *words; /* the token embedding, looked up before this segment, or NULL */
    bool has_weights, has_scaled;
    bool has_choice, holds_choice; /* holds: it lives beyond the block */
    ftmem__var choice;             /* the keys that the block's indexer has chosen: returned beside the stream */
    ftmem__var scaled;             /* the head's input: a name until the loss is there */
    ftmem__var table[2];           /* cos and sin that a call of the rotation has made for itself; store -1: the model's */
    ftmem__var weights;            /* attention weights that eager attention returned: alive until the block returns */
} ftmem__low;

/* Key and value heads of this block. */
static inline int64_t ftmem__low_kv_heads(const ftmem__low *low)
{
    return low->shape->kv_heads * (low->shape->family->sliding_kv_twice && low->kind == FTMEM__LAYER_SLIDING ? 2 : 1);
}

void ftmem__shape_by_kind(ftmem__shape *shape, uint8_t kind);              /* the widths of a block of this kind, where they are its own */
uint8_t ftmem__shape_layer_kind(const ftmem__shape *shape, int64_t layer); /* ftmem__low.kind of a block */
/* Whether a bias is, of a module that is trained or not. */
bool ftmem__shape_bias_trained(const ftmem__shape *shape, bool module);
bool ftmem__shape_layer_trained(const ftmem__shape *shape, int64_t layer);
bool ftmem__shape_outside_adapted(const ftmem__shape *shape); /* linears outside the blocks have adapters: none are chosen by number */
bool ftmem__shape_layer_adapted(const ftmem__shape *shape, int64_t layer);

/* What the base model's frame holds beside the stream while its blocks run. */
typedef struct ftmem__prologue {
    ftmem__var held[10];  /* the embedding and what was added to it: until the base model returns */
    ftmem__var masks[4];  /* masks and other arguments of blocks: likewise; to the end of backward when blocks are checkpointed */
    ftmem__var tables[2]; /* cos and sin: kept by the rotations to the end of backward */
    int32_t held_count, mask_count;
    int32_t mask_of[2]; /* 1 + the place of the mask of full and of window blocks; 0: they have none */
    bool has_tables;
} ftmem__prologue;

/* Logits exist as a whole. */
static inline bool ftmem__whole_logits(const ftmem_job *job)
{
    return job->loss < FTMEM_LOSS_CHUNKED || job->loss > FTMEM_LOSS_TILES;
}

/* The loop holds what the model returns to the end of the step. */
static inline bool ftmem__holds_outputs(const ftmem_job *job)
{
    return job->loss == FTMEM_LOSS_HELD || job->loss == FTMEM_LOSS_LOOP || job->loss == FTMEM_LOSS_MEAN;
}

int32_t ftmem__shape_pixels(const ftmem__shape *shape);                                           /* dtype of the pixels of the batch */
ftmem_status ftmem__shape_fill(ftmem__shape *shape, const ftmem__case *c, ftmem_error *error);    /* of the last stack */
ftmem_status ftmem__shape_encoder(ftmem__shape *shape, const ftmem__case *c, ftmem_error *error); /* of the one before, where there is one */
ftmem_status ftmem__shape_tower(ftmem__shape *shape, const ftmem__shape *text, const ftmem__case *c, ftmem_error *error); /* of a vision tower that runs */

/* dropout.c */
ftmem__var ftmem__low_dropout(ftmem__low *low, ftmem__var x, double p); /* takes over x */
/* linear.c */
ftmem__var ftmem__low_base(ftmem__low *low, int32_t role, ftmem__var x, int64_t out, bool bias);
ftmem__var ftmem__low_weight(ftmem__low *low, int32_t role, int64_t in, int64_t out, bool bias); /* of a linear that is stored plainly: declared alone */
int32_t ftmem__low_dtype(const ftmem__low *low, int32_t role);                                   /* as the weight is stored, if it is not quantised */
ftmem__var ftmem__low_quantized_head(ftmem__low *low, ftmem__var x, int64_t out);
void ftmem__low_quantized_parameter(ftmem__low *low, int32_t role, int64_t in, int64_t out);
ftmem__var ftmem__low_merged_linear(ftmem__low *low, ftmem__var x, const int64_t part[3], bool bias);      /* widths of q, k, v */
ftmem__var ftmem__low_parameter(ftmem__low *low, int32_t role, int64_t n, int64_t cols, bool trained);     /* a norm's vector, an embedding */
ftmem__var ftmem__low_parameter_of(ftmem__low *low, int32_t role, int64_t n, int64_t cols, int32_t dtype); /* one that keeps a dtype of its own */
ftmem__var ftmem__low_convolution(ftmem__low *low, ftmem__var x, int64_t channels, int64_t out, int64_t length, int64_t kernel); /* F.conv1d; takes over x */
ftmem__var ftmem__low_copy(ftmem__low *low, int32_t role, int64_t n, int64_t cols);    /* PEFT's modules_to_save: a trained copy */
ftmem__var ftmem__low_adapter(ftmem__low *low, int32_t role, int64_t n, int64_t rows); /* a matrix of an adapter */
ftmem__var ftmem__low_adapter_of(ftmem__low *low, int32_t role, int64_t n, int64_t rows, bool trained);
void ftmem__low_buffer(ftmem__low *low, int64_t bytes); /* resident beside the parameters */
int64_t ftmem__low_rank(const ftmem__low *low, int32_t role);
ftmem__var ftmem__low_plain_linear(ftmem__low *low, ftmem__var x, ftmem__var w, const ftmem__var *bias, int64_t out); /* F.linear, autocast honoured */
const ftmem__quant *ftmem__low_quant(const ftmem__low *low, int32_t role); /* the format of a linear; NULL: stored plainly */
int16_t ftmem__low_dequantized(ftmem__low *low, int32_t role, int64_t in, int64_t out,
                               int32_t *dtype);                                             /* peft's dequantize_module_weight: -1: the weight itself */
int64_t ftmem__low_lora_parameters(ftmem__low *low, int32_t role, int64_t in, int64_t out); /* declares a frozen weight with A and B; elements of those */
/* adapter.c */
ftmem__var ftmem__low_linear(ftmem__low *low, int32_t role, ftmem__var x, int64_t out, bool bias); /* adapted where it is a target */
/* fused.c: false where the kernel does not apply */
bool ftmem__low_fused_qkv(ftmem__low *low, ftmem__var x, ftmem__var qkv[3]);
bool ftmem__low_fused_o(ftmem__low *low, ftmem__var x, int64_t out, ftmem__var *y);
bool ftmem__low_fused_mlp(ftmem__low *low, ftmem__var x, int64_t f, ftmem__var *y);
/* norm.c */
ftmem__var ftmem__low_norm(ftmem__low *low, ftmem__var x, int64_t width); /* the family's norm over the last `width` */
ftmem__var ftmem__low_rms_plus_one(ftmem__low *low, ftmem__var x, int64_t width);
ftmem__var ftmem__low_layer_norm(ftmem__low *low, ftmem__var x, int64_t width); /* LayerNorm with a bias, whatever the family's is */
ftmem__var ftmem__low_qk_norm(ftmem__low *low, ftmem__var x);
ftmem__var ftmem__low_l2_norm(ftmem__low *low, ftmem__var x);
ftmem__var ftmem__low_norm_unweighted(ftmem__low *low, ftmem__var x, int64_t width); /* over each `width` of it; x stays the caller's */
ftmem__var ftmem__low_rms(ftmem__low *low, ftmem__var x, ftmem__var *variance);      /* x / rms(x), of fp32; takes over x; variance: a name of the caller's */
ftmem__var ftmem__low_gated_norm(ftmem__low *low, ftmem__var x, ftmem__var gate, int64_t width); /* norm(x) * silu(gate); both stay the caller's */
/* attention.c */
ftmem__var ftmem__low_turn(ftmem__low *low, ftmem__var x);                                                  /* (x * cos) + (rotate_half(x) * sin) */
void ftmem__low_rotate(ftmem__low *low, ftmem__var qk[2], ftmem__var *locals, int32_t *count);              /* locals: what the caller's frame keeps beside */
ftmem__var ftmem__low_attend(ftmem__low *low, const ftmem__var qkv[3], ftmem__var *locals, int32_t *count); /* q, k, v stay the caller's */
bool ftmem__low_own_eager(const ftmem__low *low);                /* the model's own eager code runs, whatever the job asks for */
int32_t ftmem__low_kernel(const ftmem__low *low, int32_t dtype); /* FTMEM_KERNEL_... for queries of this dtype */
/* latent.c */
void ftmem__low_latent(ftmem__low *low, ftmem__var x, ftmem__var qkv[3], ftmem__var *locals, int32_t *count); /* rotated queries, keys and values */
ftmem__var ftmem__low_turn_pairs(ftmem__low *low, ftmem__var x);                                              /* rotates even and odd dimensions, taken apart */
/* indexer.c */
ftmem__var ftmem__low_choice(ftmem__low *low); /* a tensor like the one that an indexer makes; store -1 where nothing is handed on */
void ftmem__low_indexer(ftmem__low *low, ftmem__var x, ftmem__var latent, ftmem__var *locals, int32_t *count); /* where the model has one */
/* layer_input.c */
ftmem__var ftmem__low_layer_inputs(ftmem__low *low, ftmem__var x,
                                   const ftmem__var *ids); /* makes FTMEM__SIDE_LAYERS of the token embedding; returns what it looked up */
ftmem__var ftmem__low_layer_input(ftmem__low *low);        /* this block's part of it, a view */
/* shared_kv.c */
void ftmem__low_shared_kv(ftmem__low *low, ftmem__var x, ftmem__var qkv[3]); /* rotated queries, keys and values, which may be another block's */
/* ssm.c */
ftmem__var ftmem__low_ssm(ftmem__low *low, ftmem__var x); /* x stays the caller's */
/* mlp.c */
ftmem__var ftmem__low_mlp(ftmem__low *low, ftmem__var x);
ftmem__var ftmem__low_up(ftmem__low *low, ftmem__var x);                               /* act(up(x)): takes over x */
ftmem__var ftmem__low_down(ftmem__low *low, ftmem__var x);                             /* x stays the caller's */
ftmem__var ftmem__low_gated(ftmem__low *low, ftmem__var x, int64_t width);             /* a gated MLP of this width */
ftmem__var ftmem__low_gated_fused(ftmem__low *low, ftmem__var x, int64_t width);       /* gate and up in one projection */
ftmem__var ftmem__low_plain(ftmem__low *low, ftmem__var x, int64_t width);             /* one without a gate */
ftmem__var ftmem__low_mlp_inline(ftmem__low *low, ftmem__var x);                       /* takes over x */
ftmem__var ftmem__low_activation(ftmem__low *low, ftmem__var x);                       /* takes over x */
ftmem__var ftmem__low_clamp(ftmem__low *low, ftmem__var x, int32_t bounds);            /* backward: a mask for each bound, and a zero; x stays the caller's */
ftmem__var ftmem__low_softcap(ftmem__low *low, ftmem__var x);                          /* takes over x */
ftmem__var ftmem__low_dropout_add(ftmem__low *low, ftmem__var x, ftmem__var residual); /* both stay the caller's */
/* delta.c */
ftmem__var ftmem__low_delta(ftmem__low *low, ftmem__var x); /* linear attention by the gated delta rule, with its projections */
/* experts.c */
ftmem__var ftmem__low_experts(ftmem__low *low, ftmem__var x);
/* norm(experts(norm(x))); x stays the caller's. names: what lives until the block returns. */
ftmem__var ftmem__low_experts_beside(ftmem__low *low, ftmem__var x, ftmem__var names[3]);
/* program.c: the three kinds of segment */
ftmem__var ftmem__low_embed(ftmem__low *low, ftmem__prologue *prologue); /* returns the stream */
ftmem__var ftmem__low_block(ftmem__low *low, ftmem__var x);              /* x stays the caller's */
ftmem__var ftmem__low_final_norm(ftmem__low *low, ftmem__var x);         /* what the stack returns; x stays the caller's */
ftmem__var ftmem__low_words(ftmem__low *low);                            /* the token embedding, looked up, a leaf where input gradients are enabled */
ftmem__var ftmem__low_lookup(ftmem__low *low, ftmem__var w, int64_t tokens);
void ftmem__low_input_leaf(ftmem__low *low, ftmem__var *x);      /* enable_input_require_grads */
void ftmem__low_view(ftmem__low *low, int32_t i, ftmem__var *x); /* heads of queries, keys or values (0, 1, 2): a gradient laid out by heads is copied */
/* encoder.c */
ftmem__var ftmem__low_embed_normed(ftmem__low *low);
ftmem__var ftmem__low_embed_segments(ftmem__low *low);
ftmem__var ftmem__low_widen(ftmem__low *low, ftmem__var x); /* the token embedding to the width of the stream */
ftmem__var ftmem__low_embed_patches(ftmem__low *low);
ftmem__var ftmem__low_patches(ftmem__low *low, int32_t role, int64_t patches, bool bias); /* an image's patches through a convolution */
/* image.c */
ftmem__var ftmem__low_embed_image(ftmem__low *low, ftmem__prologue *p);
ftmem__var ftmem__low_tap(ftmem__low *low, ftmem__var x);                            /* features of a block besides the last; x stays the caller's */
ftmem__var ftmem__low_deepstack(ftmem__low *low, ftmem__var x, ftmem__var features); /* adds them to the stream; both stay the caller's */
static inline bool ftmem__shape_tapped(const ftmem__shape *shape, int64_t layer)
{
    int64_t at = layer - shape->tap_first;
    return at >= 0 && at % shape->tap_every == 0 && at / shape->tap_every < shape->taps;
}
void ftmem__low_image_positions(ftmem__low *low, ftmem__prologue *p);
ftmem__var ftmem__low_bridge(ftmem__low *low, ftmem__var x); /* a tower's end: features in the text model's width; x stays the caller's */
ftmem__var ftmem__low_scatter(ftmem__low *low, ftmem__prologue *p, ftmem__var words); /* takes over the words */
/* tower.c */
void ftmem__low_tower(ftmem__low *low);    /* declares the parameters of a vision tower */
void ftmem__low_mtp(ftmem__low *low);      /* and of blocks for multi-token prediction */
void ftmem__tower_adapter(ftmem__case *c); /* the adapter as the tower's linears have it */
int64_t ftmem__tower_buffer_bytes(const ftmem_model *model, int32_t dtype);
/* head.c */
ftmem__var ftmem__low_pool(ftmem__low *low, ftmem__var x);          /* the base model's part; x stays the caller's */
ftmem__var ftmem__low_before_logits(ftmem__low *low, ftmem__var x); /* the head's part before its last linear; likewise */
ftmem__var ftmem__low_head_parameter(ftmem__low *low, int64_t n, int64_t cols);
/* loss.c */
ftmem__var ftmem__low_logits(ftmem__low *low, ftmem__var x);
ftmem__var ftmem__low_loss(ftmem__low *low, ftmem__var logits);
ftmem__var ftmem__low_outputs(ftmem__low *low, ftmem__var logits);              /* what the model hands out; takes over the logits */
ftmem__var ftmem__low_fused_loss(ftmem__low *low, ftmem__var x);                /* head and loss without logits */
int64_t ftmem__low_split_loss(ftmem__low *low, ftmem__var x, ftmem__var *loss); /* returns bytes of the logits that stay alive */
ftmem__var ftmem__low_head_matrix(ftmem__low *low);                             /* of words, declared */
ftmem__var ftmem__low_shifted_loss(ftmem__low *low, ftmem__var logits);         /* cross-entropy as written out by hand */
ftmem__var ftmem__low_last_token(ftmem__low *low, ftmem__var logits);           /* of each row */
ftmem__var ftmem__low_shifted(ftmem__low *low, ftmem__var logits);              /* logits[..., :-1, :].contiguous() */
/* logprob.c */
ftmem__var ftmem__low_tiles(ftmem__low *low, ftmem__var x);      /* log-probabilities of labels, without logits */
ftmem__var ftmem__low_loss_apart(ftmem__low *low, ftmem__var x); /* the trainer's: of log-probabilities, logits or scores */
void ftmem__low_chunked_forward(ftmem__low *low, ftmem__var x);
void ftmem__low_chunked_backward(ftmem__low *low, ftmem__var x);

#endif
