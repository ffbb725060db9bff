"""Records and members: TFRecord, tar, ArrayRecord, MDS, Megatron, ETL, files as they are."""
