"""Small models, texts and slow truths that several tests share."""
