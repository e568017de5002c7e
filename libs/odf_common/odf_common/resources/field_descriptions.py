"""The meaning of each field of a spec, for schemas, `odf explain` and the reference.

Docstrings below fields do not exist at run time, and annotations would hide the shape of a spec, so the sentences are
in this table, by class and key of manifests. A subclass has the fields of its base.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_COLUMNS: Final = {
    "schema": "Columns, as a schema.",
    "ddlSchema": "Columns, each as a definition of SQL; `schema` replaces it.",
}
_TIMES: Final = {
    "dateFormat": "Format of dates: `rfc3339`, of strftime if it contains `%`, else of Java's SimpleDateFormat.",
    "timestampFormat": "Format of times, as for dates; or the unit of an epoch time, such as `epochMillis`.",
}
_ENCODING: Final = "Encoding of the text, such as `utf8`, `latin-1` or `windows-1252`."
_FETCHED: Final = {
    "eventTime": "Event time of what is fetched.",
    "cache": "Whether it is fetched again.",
}
_UNIT: Final = "Unit of the number."
_EXTRA: Final = "Attributes that the node keeps and does not interpret."
_DATA: Final = {
    "prevCheckpoint": "Hash of the checkpoint before.",
    "prevOffset": "Last offset before; absent if there were no records.",
    "newData": "The new records.",
    "newCheckpoint": "The new checkpoint.",
    "newWatermark": "Watermark from here on.",
}
_INTERVAL: Final = {
    "prevBlockHash": "Last block that earlier steps read.",
    "newBlockHash": "Last block that this step read; absent: nothing new.",
    "prevOffset": "Last offset that earlier steps read.",
    "newOffset": "Last offset that this step read; absent: no new records.",
}

_TABLE: Final[dict[str, dict[str, str]]] = {
    "AccountSpec": {
        "did": "Identity in all nodes; the node generates one if it is absent.",
        "accountType": "A user, or an organization with members.",
        "displayName": "Name for people.",
        "email": "Address for notifications.",
        "avatarUrl": "Picture of the account.",
        "password": "Password for logging in, of which the node stores a hash; absent for other ways to log in.",
    },
    "Relation": {
        "subject": "Resource that has the relation, such as an account.",
        "relation": "Name of the relation, such as `role` or `member`.",
        "value": "Value of the relation, such as `reader`.",
        "object": "Resource that the relation is to, such as a dataset.",
    },
    "Attribute": {
        "object": "Resource that has the attribute.",
        "name": "Name of the attribute, such as `allowPublicRead`.",
        "value": "Value of the attribute.",
    },
    "RelationsSpec": {
        "relations": "Relations of resources to others.",
        "attributes": "Attributes of resources.",
    },
    "VariableSetSpec": {"variables": "Values by name."},
    "SecretSetSpec": {"secrets": "Secrets by name."},
    "DatasetSpec": {
        "did": "Identity of the dataset in all nodes; the node generates one if it is absent.",
        "kind": "Whether data is ingested or derived; it cannot change.",
        "metadata": "Metadata that the chain shall have in effect: sources, query, license, attachments.",
        "volume": "Volume that stores the data; that of the node if it is absent.",
    },
    "ProjectionSpec": {
        "inputs": "Datasets that are read.",
        "project": "Query that computes the state.",
    },
    "IngressBufferMemory": {
        "bufferSize": "Number of records that the buffer has room for.",
        "overflowPolicy": "Treatment of a record that finds the buffer full.",
    },
    "IngressRestEndpoint": {"buffer": "Buffer of records until they are ingested."},
    "IngressKafkaTopic": {
        "topics": "Names of topics, and patterns with `*`.",
        "start": "Where reading starts: `earliest`, `latest` or a time.",
        "keyColumns": "Columns that are read from the key of a message.",
        "keyFormat": "Format of keys.",
        "headerColumns": "Columns that are read from headers, by name of the header.",
        "timestampColumn": "Column that has the timestamp of the message.",
        "messageFormat": "Format of values.",
        "envelope": "Envelope that values are in, such as that of change data capture.",
        "registry": "Address of the registry that has the schemas of messages.",
        "badRecords": "Treatment of messages that cannot be read: `dead-letter`, as by default, or `stop`.",
        "finerTimes": "Treatment of times that are finer than their column: `cut` or `refuse`.",
        "retractions": "Values of retractions: `strict`, all of them, or `complete`, only the key.",
        "watermarkDelay": "Delay of the watermark after the greatest event time, such as `2h`.",
        "maxFuture": "How far in the future an event time may raise the watermark, or `none`.",
        "idleTimeout": "Time after which a silent partition does not hold back the watermark, or `none`.",
    },
    "SourceSpec": {
        "config": "Variables and secrets for `${{ config.NAME }}` in the ingress, by name.",
        "ingress": "Where data comes from; absent: it is pushed by commands and requests only.",
        "prepare": "Steps that unpack what is fetched.",
        "read": "Format of the data.",
        "preprocess": "Query that computes each record alone, from the input `input`.",
        "merge": "Comparison of new records with those that are stored; `Append` if it is absent.",
        "vocab": "Names of the system columns after `preprocess`; those of the dataset if it is absent.",
    },
    "VolumeCapacity": {"storage": "Number of bytes that datasets may take together."},
    "AwsCredentials": {
        "accessKey": "Id of the access key, in a set of secrets.",
        "secretKey": "Secret of the access key, in a set of secrets.",
    },
    "PersistentVolumeS3": {
        "endpoint": "Address of the object store; AWS if it is absent.",
        "region": "Region of the bucket.",
        "bucket": "Name of the bucket.",
        "prefix": "Path in the bucket below which datasets are stored.",
        "capacity": "Limits of the volume.",
        "credentials": "Access key; what the node's environment provides if it is absent.",
    },
    "PersistentVolumeLocalFolder": {
        "path": "Absolute path of the folder.",
        "capacity": "Limits of the volume.",
    },
    "WebhookTargetSpec": {
        "url": "Address that events are posted to.",
        "secret": "Key of the signature that deliveries carry.",
    },
    "FlowTriggerSchedule": {"cron": "Times in UTC: a cron expression of five fields, or such as `@daily`."},
    "FlowTriggerEvent": {
        "events": "Filter over the fields of events.",
        "cooldown": "Time after a start in which further events wait for one more start at its end.",
        "cooldownMaxBatch": "Number of waiting events that starts the flow before the cooldown ends.",
    },
    "FlowTriggerSource": {
        "source": "Source that is watched.",
        "minRecordsToAwait": "Number of new records that starts the flow.",
        "maxAwaitInterval": "Time after which fewer records start it.",
    },
    "FlowTriggerDataset": {
        "dataset": "Datasets that are watched.",
        "events": "Types of events that start the flow.",
    },
    "IngestParams": {"targetSliceRecords": "Number of records of a slice."},
    "CompactionParams": {
        "maxSliceSize": "Largest size of a slice.",
        "maxSliceRecords": "Largest number of records of a slice.",
    },
    "TaskIngest": {"source": "Source that is ingested.", "params": "Parameters of the task."},
    "TaskCompaction": {"params": "Parameters of the task."},
    "TaskWebhookCall": {
        "target": "Webhook target that is called.",
        "payload": "Body of the request, with `${{ … }}` for parts of the event; the event if it is absent.",
    },
    "TaskVerify": {"withReplay": "Whether the query of a derivative is executed again."},
    "TaskPush": {"to": "Repository or node; where the dataset was pushed before if it is absent."},
    "TaskPull": {"source": "Repository or node; where the dataset was pulled from if it is absent."},
    "FlowSpec": {
        "target": "Resources that the tasks are executed for.",
        "triggers": "What starts the flow; empty: only commands and requests.",
        "tasks": "Tasks, in the order of their execution.",
    },
    # --- Parts that events of the chain have too --------------------------------------------------------------------
    "ReadStepCsv": {
        **_COLUMNS,
        **_TIMES,
        "separator": "One ASCII character between values.",
        "encoding": _ENCODING,
        "quote": "One ASCII character around values; empty: no quotes.",
        "escape": "One ASCII character before a quote inside quotes; empty or a quote: it is doubled.",
        "header": "Whether the first line has the names of the columns.",
        "inferSchema": "Whether types are inferred where no columns are declared.",
        "nullValue": "String that stands for null, quoted or not; empty: the empty value without quotes.",
    },
    "ReadStepJson": {
        **_COLUMNS,
        **_TIMES,
        "encoding": _ENCODING,
        "subPath": "Place of the array in the document: names joined by `.`; the root if it is absent.",
    },
    "ReadStepNdJson": {**_COLUMNS, **_TIMES, "encoding": _ENCODING},
    "ReadStepParquet": _COLUMNS,
    "ReadStepGeoJson": _COLUMNS,
    "ReadStepNdGeoJson": _COLUMNS,
    "ReadStepEsriShapefile": {
        **_COLUMNS,
        "subPath": "The `.shp` file in an archive of several; may have wildcards.",
    },
    "MergeStrategyLedger": {"primaryKey": "Columns whose values identify a record."},
    "MergeStrategySnapshot": {
        "primaryKey": "Columns whose values identify a record.",
        "compareColumns": "Columns whose change makes a correction; all if they are absent.",
    },
    "MergeStrategyChangelogStream": {"primaryKey": "Columns whose values identify a record."},
    "MergeStrategyUpsertStream": {"primaryKey": "Columns whose values identify a record."},
    "TransformSql": {
        "engine": "Engine that executes the query.",
        "version": "Version of the engine; the node sets its own if it is absent.",
        "query": "The query, if it is one.",
        "queries": "Several queries; the last one, without alias, is the output.",
        "temporalTables": "Inputs and steps that are joined as of a time.",
    },
    "SqlQueryStep": {
        "alias": "Name by which later steps read the result; absent: it is the output.",
        "query": "SQL.",
    },
    "TemporalTable": {
        "name": "An input or a step.",
        "primaryKey": "Columns that a temporal join has to compare.",
    },
    "TransformInput": {
        "datasetRef": "Name or id of a dataset.",
        "alias": "Its name in SQL; the name as written if it is absent.",
    },
    "DatasetVocabulary": {
        "offsetColumn": "Name of the column of offsets.",
        "operationTypeColumn": "Name of the column of operations.",
        "systemTimeColumn": "Name of the column of times of ingestion.",
        "eventTimeColumn": "Name of the column of times of what the records describe.",
    },
    "FetchStepUrl": {
        **_FETCHED,
        "url": "Address: `http`, `https`, `ftp` or `file`.",
        "headers": "Headers of the request.",
    },
    "RequestHeader": {"name": "Name of the header.", "value": "Value of the header."},
    "FetchStepFilesGlob": {
        **_FETCHED,
        "path": "Absolute path with `*`, `?`, `[…]` or `**`.",
        "order": "Order in which the files are read.",
    },
    "FetchStepContainer": {
        "image": "Name and tag of the image.",
        "command": "Program and its arguments, in place of the image's entrypoint.",
        "args": "Further arguments, in place of the image's command.",
        "env": "Environment variables of the container.",
    },
    "EnvVar": {
        "name": "Name of the variable.",
        "value": "Value; that of the node's environment if it is absent.",
    },
    "FetchStepMqtt": {
        "host": "Host of the broker.",
        "port": "Port of the broker.",
        "username": "User of the broker.",
        "password": "Password of the user, as a template.",
        "topics": "Topics that are subscribed to.",
    },
    "MqttTopicSubscription": {"path": "Name of the topic, with wildcards.", "qos": "Guarantee of delivery."},
    "FetchStepEthereumLogs": {
        "chainId": "Number of the chain.",
        "nodeUrl": "Address of the node.",
        "filter": "Condition of SQL over the logs.",
        "signature": "Signature of the event that is decoded.",
    },
    "PrepStepDecompress": {
        "format": "Format of the archive.",
        "subPath": "The file in an archive of several; may have wildcards.",
    },
    "PrepStepPipe": {"command": "Program and its arguments."},
    "EventTimeSourceFromPath": {
        "pattern": "Regular expression whose first group has the time.",
        "timestampFormat": "Format of the time; RFC 3339 if it is absent.",
    },
    "DataSchema": {"fields": "Columns in order.", "extra": _EXTRA},
    "DataField": {"name": "Name of the column.", "type": "Type of the column.", "extra": _EXTRA},
    "DataTypeBinary": {"fixedLength": "Number of bytes; absent: any."},
    "DataTypeDecimal": {
        "precision": "Number of digits.",
        "scale": "Number of digits after the decimal point.",
    },
    "DataTypeDuration": {"unit": _UNIT},
    "DataTypeTime": {"unit": _UNIT},
    "DataTypeTimestamp": {"unit": _UNIT, "timezone": "Time zone."},
    "DataTypeList": {"itemType": "Type of the items.", "fixedLength": "Number of items; absent: any."},
    "DataTypeMap": {
        "keyType": "Type of the keys.",
        "valueType": "Type of the values.",
        "keysSorted": "Whether keys are sorted.",
    },
    "DataTypeOption": {"inner": "Type of the values that are not null."},
    "DataTypeStruct": {"fields": "Fields in order."},
    # --- Events -----------------------------------------------------------------------------------------------------
    "AddData": {**_DATA, "newSourceState": "Position of the source after these records.", "extra": _EXTRA},
    "ExecuteTransform": {**_DATA, "queryInputs": "What was read of each input."},
    "ExecuteTransformInput": {**_INTERVAL, "datasetId": "The input."},
    "DataSlice": {
        "logicalHash": "Hash of the values.",
        "physicalHash": "Hash of the file, which is its name.",
        "offsetInterval": "Offsets of the records.",
        "size": "Number of bytes.",
    },
    "Checkpoint": {"physicalHash": "Hash of the file, which is its name.", "size": "Number of bytes."},
    "OffsetInterval": {"start": "First offset.", "end": "Last offset, included."},
    "SourceState": {
        "sourceName": "The source.",
        "kind": "Form of the value.",
        "value": "Position up to which the source was read.",
    },
    "Seed": {"datasetId": "Identity of the dataset.", "datasetKind": "Kind of the dataset."},
    "SetPollingSource": {
        "fetch": "Where data is fetched.",
        "prepare": "Steps that unpack it.",
        "read": "Format of the data.",
        "preprocess": "Query that computes each record alone, from the input `input`.",
        "merge": "Comparison of new records with those that are stored.",
    },
    "AddPushSource": {
        "sourceName": "Name of the source; `default` for the only one.",
        "read": "Format of the data.",
        "preprocess": "Query that computes each record alone, from the input `input`.",
        "merge": "Comparison of new records with those that are stored.",
    },
    "DisablePushSource": {"sourceName": "Name of the source."},
    "SetTransform": {"inputs": "Datasets that are read.", "transform": "The query."},
    "SetVocab": {
        "offsetColumn": "Name of the column of offsets.",
        "operationTypeColumn": "Name of the column of operations.",
        "systemTimeColumn": "Name of the column of times of ingestion.",
        "eventTimeColumn": "Name of the column of times of what the records describe.",
    },
    "SetAttachments": {"attachments": "The files."},
    "AttachmentsEmbedded": {"items": "Files that the chain contains."},
    "AttachmentEmbedded": {"path": "Name of the file.", "content": "Text of the file."},
    "SetInfo": {"description": "What the dataset is about.", "keywords": "Words to find it by."},
    "SetLicense": {
        "shortName": "Short name of the license.",
        "name": "Full name of the license.",
        "spdxId": "Identifier in the SPDX list.",
        "websiteUrl": "Where it can be read.",
    },
    "SetDataSchema": {
        "rawArrowSchema": "Schema of Arrow as a FlatBuffer in base64; `schema` replaces it.",
        "schema": "Columns of the slices that follow.",
    },
}
FIELD_DESCRIPTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(_TABLE)


def describe_field(cls: type, key: str) -> str:
    """Return the sentence on a field; raises `KeyError` for one that has none."""
    for owner in cls.__mro__:
        if owner.__name__ in FIELD_DESCRIPTIONS:
            return FIELD_DESCRIPTIONS[owner.__name__][key]
    raise KeyError(cls.__name__)
