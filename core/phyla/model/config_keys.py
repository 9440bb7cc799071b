"""Keys of a config that say nothing about what a model computes. No mlx."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOKKEEPING = _words(
    """
    architectures auto_map model_type dtype torch_dtype transformers_version transformers.js_config
    is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size tie_encoder_decoder
    output_attentions output_hidden_states output_router_logits return_dict torchscript use_cache use_bfloat16
    id2label label2id num_labels problem_type finetuning_task task_specific_params pruned_heads
    chunk_size_feed_forward tokenizer_class processor_class prefix language
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id mask_token_id decoder_start_token_id
    initializer_range initializer_factor initializer_cutoff_factor gradient_checkpointing pretraining_tp
    attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob classifier_dropout embd_pdrop
    resid_pdrop attn_pdrop embedding_dropout router_aux_loss_coef router_jitter_noise
    attn_implementation use_flash_attn flash_attention
    model_max_length max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p min_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens
    quantization quantization_config text_config tie_word_embeddings
    unsloth_fixed unsloth_version is_llama_config
    """
)
"""Training, dropout, classification, generation (which generation_config.json decides), the notes of other tools; and
what core reads itself: quantisation, sections, end-of-sequence ids. Keys that begin with an underscore are like them.
"""

ROPE_SECTION = _words(
    """
    type rope_type rope_theta factor original_max_position_embeddings low_freq_factor high_freq_factor beta_fast
    beta_slow mscale mscale_all_dim attention_factor finetuned
    """
)
"""Keys of `rope_scaling` and `rope_parameters` that `rope_form` and `rope_of` know."""
