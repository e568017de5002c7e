"""All functions of Spark, each listed once: allowed in transforms, in ad-hoc queries only, or refused.

A function is written as `name:Class+Class`: its name in SQL, and the names of the classes, without package, that it may
have in a plan. Functions that are not listed are refused. So a function of a new Spark release stays refused until it
has been reviewed. Operators are functions, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


def names_in(text: str) -> frozenset[str]:
    """Return the whitespace-separated names in a string."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """Functions that may not be used in transforms, or at all, with the reason and the alternative."""

    functions: str
    classes: frozenset[str] = frozenset()
    """Classes of expressions that have no function name in SQL."""
    why: str
    instead: str = ""

    def __str__(self) -> str:
        """Return the reason and the remedy."""
        return f"{self.why}: {self.instead}" if self.instead else self.why


IN_TRANSFORMS: Final[Mapping[str, str]] = {
    "numbers": """
        abs:Abs acos:Acos acosh:Acosh asin:Asin asinh:Asinh atan:Atan atan2:Atan2 atanh:Atanh bin:Bin
        bround:BRound cbrt:Cbrt ceil:Ceil+RoundCeil ceiling conv:Conv cos:Cos cosh:Cosh cot:Cot csc:Csc
        degrees:ToDegrees div:IntegralDivide e:EulerNumber exp:Exp expm1:Expm1 factorial:Factorial
        floor:Floor+RoundFloor greatest:Greatest hex:Hex hypot:Hypot least:Least ln:Log log:Logarithm
        log10:Log10 log1p:Log1p log2:Log2 mod:Remainder negative:UnaryMinus pi:Pi pmod:Pmod
        positive:UnaryPositive pow:Pow power:Pow radians:ToRadians rint:Rint round:Round sec:Sec
        sign:Signum signum:Signum sin:Sin sinh:Sinh sqrt:Sqrt tan:Tan tanh:Tanh try_add:TryAdd+TryEval
        try_divide:TryDivide try_mod:TryMod try_multiply:TryMultiply try_subtract:TrySubtract unhex:Unhex
        width_bucket:WidthBucket %:Remainder *:Multiply +:Add -:Subtract /:Divide
    """,
    "strings": """
        ascii:Ascii base64:Base64 bit_length:BitLength btrim:StringTrimBoth char:Chr char_length:Length
        character_length:Length chr:Chr collation:Collation concat_ws:ConcatWs
        contains:Contains+BinaryPredicate decode:Decode+StringDecode elt:Elt encode:Encode
        endswith:EndsWith+BinaryPredicate find_in_set:FindInSet format_number:FormatNumber
        format_string:FormatString from_base32:UnBase32 initcap:InitCap
        instr:StringInstr+StringInstrWithOccurrence is_valid_utf8:IsValidUTF8
        jaro_winkler_similarity:JaroWinkler lcase:Lower left:Left len:Length length:Length
        levenshtein:Levenshtein locate:StringLocate lower:Lower lpad:StringLPad+BinaryPad
        ltrim:StringTrimLeft luhn_check:Luhncheck make_valid_utf8:MakeValidUTF8 mask:Mask
        octet_length:OctetLength overlay:Overlay position:StringLocate printf:FormatString quote:Quote
        regexp_count:RegExpCount regexp_extract:RegExpExtract regexp_extract_all:RegExpExtractAll
        regexp_instr:RegExpInStr regexp_replace:RegExpReplace regexp_substr:RegExpSubStr
        repeat:StringRepeat replace:StringReplace right:Right rpad:StringRPad+BinaryPad
        rtrim:StringTrimRight sentences:Sentences soundex:SoundEx space:StringSpace split:StringSplit
        split_part:SplitPart startswith:StartsWith+BinaryPredicate substr:Substring substring:Substring
        substring_index:SubstringIndex to_base32:Base32 to_binary:ToBinary to_char:ToCharacter
        to_number:ToNumber to_varchar translate:StringTranslate trim:StringTrim try_to_binary:TryToBinary
        try_to_number:TryToNumber try_validate_utf8:TryValidateUTF8 ucase:Upper unbase64:UnBase64
        upper:Upper validate_utf8:ValidateUTF8
    """,
    "comparisons": """
        and:And equal_null:EqualNull ilike:ILike in:In isnan:IsNaN isnotnull:IsNotNull isnull:IsNull
        like:Like not:Not or:Or regexp:RLike regexp_like:RLike rlike:RLike !:Not <:LessThan
        <=:LessThanOrEqual <=>:EqualNullSafe =:EqualTo ==:EqualTo >:GreaterThan >=:GreaterThanOrEqual
    """,
    "conditions": """
        between:Between coalesce:Coalesce if:If ifnull:Nvl nanvl:NaNvl nullif:NullIf+NullIfResult
        nullifzero:NullIfZero nvl:Nvl nvl2:Nvl2 when:CaseWhen zeroifnull:ZeroIfNull
    """,
    "conversions": """
        bigint:Cast binary:Cast boolean:Cast cast:Cast date:Cast decimal:Cast double:Cast float:Cast
        int:Cast smallint:Cast string:Cast time:Cast timestamp:Cast tinyint:Cast
    """,
    "bits": """
        bit_count:BitwiseCount bit_get:BitwiseGet getbit:BitwiseGet shiftleft:ShiftLeft
        shiftright:ShiftRight shiftrightunsigned:ShiftRightUnsigned &:BitwiseAnd <<:ShiftLeft
        >>:ShiftRight >>>:ShiftRightUnsigned ^:BitwiseXor |:BitwiseOr ~:BitwiseNot
    """,
    "hashes": """
        crc32:Crc32 hash:Murmur3Hash md5:Md5 sha:Sha1 sha1:Sha1 sha2:Sha2 xxhash64:XxHash64
    """,
    "dates and times": """
        add_months:AddMonths convert_timezone:ConvertTimezone current_timezone:CurrentTimeZone
        date_add:DateAdd date_diff:DateDiff
        date_format:DateFormatClass date_from_unix_date:DateFromUnixDate date_part:YearOfWeek
        date_sub:DateSub date_trunc:TruncTimestamp dateadd:DateAdd datediff:DateDiff datepart
        day:DayOfMonth dayname:DayName dayofmonth:DayOfMonth dayofweek:DayOfWeek dayofyear:DayOfYear
        extract:Extract from_unixtime:FromUnixTime from_utc_timestamp:FromUTCTimestamp
        hour:Hour+HoursOfTime last_day:LastDay make_date:MakeDate make_dt_interval:MakeDTInterval
        make_interval:MakeInterval make_time:MakeTime
        make_timestamp:MakeTimestamp+MakeTimestampFromDateTime
        make_timestamp_ltz:MakeTimestamp+MakeTimestampFromDateTime+MakeTimestampLTZ+MakeTimestampLTZNanos
        make_timestamp_ntz:MakeTimestampNTZ+MakeTimestampNTZNanos make_ym_interval:MakeYMInterval
        minute:Minute+MinutesOfTime month:Month monthname:MonthName months_between:MonthsBetween
        next_day:NextDay quarter:Quarter second:Second+SecondsOfTime session_window:SessionWindow
        time_bucket:TimeBucket time_diff:TimeDiff time_from_micros:TimeFromMicros
        time_from_millis:TimeFromMillis time_from_seconds:TimeFromSeconds time_to_micros:TimeToMicros
        time_to_millis:TimeToMillis time_to_seconds:TimeToSeconds time_trunc:TimeTrunc
        timestamp_micros:MicrosToTimestamp timestamp_millis:MillisToTimestamp
        timestamp_nanos:NanosToTimestamp timestamp_seconds:SecondsToTimestamp to_date:ParseToDate
        to_time:ToTime to_timestamp:ParseToTimestamp+GetTimestamp to_timestamp_ltz to_timestamp_ntz
        to_unix_timestamp:ToUnixTimestamp to_utc_timestamp:ToUTCTimestamp trunc:TruncDate
        try_make_interval:TryMakeInterval try_make_timestamp:TryMakeTimestamp+TryMakeTimestampFromDateTime
        try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp
        unix_date:UnixDate unix_micros:UnixMicros unix_millis:UnixMillis unix_nanos:UnixNanos
        unix_seconds:UnixSeconds unix_timestamp:UnixTimestamp weekday:WeekDay weekofyear:WeekOfYear
        window:TimeWindow window_time:WindowTime year:Year
    """,
    "arrays": """
        array:CreateArray array_append:ArrayAppend array_compact:ArrayCompact array_contains:ArrayContains
        array_distinct:ArrayDistinct array_except:ArrayExcept array_insert:ArrayInsert
        array_intersect:ArrayIntersect array_join:ArrayJoin array_max:ArrayMax array_min:ArrayMin
        array_position:ArrayPosition array_prepend:ArrayPrepend array_remove:ArrayRemove
        array_repeat:ArrayRepeat array_size:ArraySize array_union:ArrayUnion arrays_overlap:ArraysOverlap
        arrays_zip:ArraysZip cardinality:Size concat:Concat element_at:ElementAt flatten:Flatten get:Get
        reverse:Reverse sequence:Sequence size:Size slice:Slice sort_array:SortArray
        try_element_at:TryElementAt
    """,
    "arrays and maps with a function": """
        aggregate:ArrayAggregate array_sort:ArraySort exists:ArrayExists filter:ArrayFilter
        forall:ArrayForAll map_filter:MapFilter map_zip_with:MapZipWith reduce:ArrayAggregate
        transform:ArrayTransform transform_keys:TransformKeys transform_values:TransformValues
        zip_with:ZipWith
    """,
    "maps": """
        map:CreateMap map_concat:MapConcat map_contains_key:MapContainsKey map_entries:MapEntries
        map_from_arrays:MapFromArrays map_from_entries:MapFromEntries map_keys:MapKeys
        map_values:MapValues str_to_map:StringToMap
    """,
    "structs": """
        named_struct:CreateNamedStruct struct:CreateNamedStruct
    """,
    "rows from arrays": """
        explode:Explode explode_outer inline:Inline inline_outer posexplode:PosExplode posexplode_outer
        stack:Stack variant_explode:VariantExplode variant_explode_outer
    """,
    "JSON": """
        from_json:JsonToStructs get_json_object:GetJsonObject json_array_length:LengthOfJsonArray
        json_object_keys:JsonObjectKeys json_tuple:JsonTuple schema_of_json:SchemaOfJson
        to_json:StructsToJson
    """,
    "CSV": """
        from_csv:CsvToStructs schema_of_csv:SchemaOfCsv to_csv:StructsToCsv
    """,
    "XML": """
        to_xml:StructsToXml
    """,
    "URLs": """
        parse_url:ParseUrl try_parse_url:TryParseUrl try_url_decode:TryUrlDecode url_decode:UrlDecode
        url_encode:UrlEncode
    """,
    "variants": """
        is_valid_variant:IsValidVariant is_variant_null:IsVariantNull parse_json:ParseJson
        schema_of_variant:SchemaOfVariant
        to_variant_object:ToVariantObject try_parse_json try_variant_array_append try_variant_get
        try_variant_insert try_variant_set variant_array_append:VariantArrayAppend
        variant_delete:VariantDelete variant_get:VariantGet variant_insert:VariantInsert
        variant_set:VariantSet variant_strip_nulls:VariantStripNulls
    """,
    "vectors": """
        vector_avg:VectorAvg vector_cosine_similarity:VectorCosineSimilarity
        vector_inner_product:VectorInnerProduct vector_l2_distance:VectorL2Distance vector_norm:VectorNorm
        vector_normalize:VectorNormalize vector_sum:VectorSum
    """,
    "geometries": """
        st_asbinary:ST_AsBinary st_geogfromwkb:ST_GeogFromWKB st_geomfromwkb:ST_GeomFromWKB
        st_setsrid:ST_SetSrid st_srid:ST_Srid
    """,
    "aggregates": """
        any:BoolOr approx_count_distinct:HyperLogLogPlusPlus approx_percentile:ApproximatePercentile
        approx_top_k:ApproxTopK approx_top_k_accumulate:ApproxTopKAccumulate
        approx_top_k_combine:ApproxTopKCombine avg:Average bit_and:BitAndAgg bit_or:BitOrAgg
        bit_xor:BitXorAgg bitmap_and_agg:BitmapAndAgg bitmap_construct_agg:BitmapConstructAgg
        bitmap_or_agg:BitmapOrAgg bool_and:BoolAnd bool_or:BoolOr corr:Corr count:Count count_if:CountIf
        count_min_sketch:CountMinSketchAgg covar_pop:CovPopulation covar_samp:CovSample every:BoolAnd
        grouping:Grouping grouping_id:GroupingID histogram_numeric:HistogramNumeric
        hll_sketch_agg:HllSketchAgg hll_union_agg:HllUnionAgg kurtosis:Kurtosis max:Max
        max_by:MaxBy+MaxMinByK mean:Average median:Median min:Min min_by:MinBy+MaxMinByK mode:Mode
        percentile:Percentile percentile_approx:ApproximatePercentile percentile_cont:PercentileCont
        percentile_disc:PercentileDisc regr_avgx:RegrAvgX regr_avgy:RegrAvgY regr_count:RegrCount
        regr_intercept:RegrIntercept regr_r2:RegrR2 regr_slope:RegrSlope regr_sxx:RegrSXX regr_sxy:RegrSXY
        regr_syy:RegrSYY schema_of_variant_agg:SchemaOfVariantAgg
        skewness:Skewness some:BoolOr std:StddevSamp stddev:StddevSamp
        stddev_pop:StddevPop stddev_samp:StddevSamp sum:Sum theta_intersection_agg:ThetaIntersectionAgg
        theta_sketch_agg:ThetaSketchAgg theta_union_agg:ThetaUnionAgg try_avg try_sum
        tuple_intersection_agg_double:TupleIntersectionAggDouble
        tuple_intersection_agg_integer:TupleIntersectionAggInteger
        tuple_sketch_agg_double:TupleSketchAggDouble tuple_sketch_agg_integer:TupleSketchAggInteger
        tuple_union_agg_double:TupleUnionAggDouble tuple_union_agg_integer:TupleUnionAggInteger
        var_pop:VariancePop var_samp:VarianceSamp variance:VarianceSamp
    """,
    "sketches": """
        approx_top_k_estimate:ApproxTopKEstimate hll_sketch_estimate:HllSketchEstimate hll_union:HllUnion
        kll_sketch_get_n_bigint:KllSketchGetNBigint kll_sketch_get_n_double:KllSketchGetNDouble
        kll_sketch_get_n_float:KllSketchGetNFloat
        kll_sketch_get_quantile_bigint:KllSketchGetQuantileBigint
        kll_sketch_get_quantile_double:KllSketchGetQuantileDouble
        kll_sketch_get_quantile_float:KllSketchGetQuantileFloat
        kll_sketch_get_rank_bigint:KllSketchGetRankBigint
        kll_sketch_get_rank_double:KllSketchGetRankDouble kll_sketch_get_rank_float:KllSketchGetRankFloat
        kll_sketch_merge_bigint:KllSketchMergeBigint kll_sketch_merge_double:KllSketchMergeDouble
        kll_sketch_merge_float:KllSketchMergeFloat kll_sketch_to_string_bigint:KllSketchToStringBigint
        kll_sketch_to_string_double:KllSketchToStringDouble
        kll_sketch_to_string_float:KllSketchToStringFloat theta_difference:ThetaDifference
        theta_intersection:ThetaIntersection theta_sketch_estimate:ThetaSketchEstimate
        theta_union:ThetaUnion tuple_difference_double:TupleDifferenceDouble
        tuple_difference_integer:TupleDifferenceInteger
        tuple_difference_theta_double:TupleDifferenceThetaDouble
        tuple_difference_theta_integer:TupleDifferenceThetaInteger
        tuple_intersection_double:TupleIntersectionDouble
        tuple_intersection_integer:TupleIntersectionInteger
        tuple_intersection_theta_double:TupleIntersectionThetaDouble
        tuple_intersection_theta_integer:TupleIntersectionThetaInteger
        tuple_sketch_estimate_double:TupleSketchEstimateDouble
        tuple_sketch_estimate_integer:TupleSketchEstimateInteger
        tuple_sketch_summary_double:TupleSketchSummaryDouble
        tuple_sketch_summary_integer:TupleSketchSummaryInteger
        tuple_sketch_theta_double:TupleSketchThetaDouble
        tuple_sketch_theta_integer:TupleSketchThetaInteger tuple_union_double:TupleUnionDouble
        tuple_union_integer:TupleUnionInteger tuple_union_theta_double:TupleUnionThetaDouble
        tuple_union_theta_integer:TupleUnionThetaInteger
    """,
    "OVER": """
        counter_diff:CounterDiff+CounterDiffWithStartTime cume_dist:CumeDist dense_rank:DenseRank lag:Lag
        lead:Lead nth_value:NthValue ntile:NTile percent_rank:PercentRank rank:Rank row_number:RowNumber
    """,
    "others": """
        aes_decrypt:AesDecrypt assert_true:AssertTrue bitmap_bit_position:BitmapBitPosition
        bitmap_bucket_number:BitmapBucketNumber bitmap_count:BitmapCount hmac:Hmac raise_error:RaiseError
        try_aes_decrypt:TryAesDecrypt typeof:TypeOf
    """,
}
"""Functions that transforms may call, by topic. Ad-hoc queries may call them, too."""

_NOT_REPEATABLE: Final = "would not give the same result again"
_MORE_THAN_RECORDS: Final = "depends on more than the records"
_TABLE_FUNCTION: Final = "is not computed from an input"
AD_HOC_ONLY: Final = (
    Restriction(
        functions="""
            current_date:CurrentDate curdate:CurrentDate current_time:CurrentTime localtime:CurrentTime
            current_timestamp:CurrentTimestamp+CurrentTimestampNanos+CurrentBatchTimestamp now:Now
            localtimestamp:LocalTimestamp+LocalTimestampNanos
        """,
        classes=names_in("UnixTimestampNow"),
        why=_NOT_REPEATABLE,
        instead="use the event time, or another time that the records have",
    ),
    Restriction(
        functions="""
            rand:Rand randn:Randn random:Rand randstr:RandStr uniform:Uniform uuid:Uuid shuffle:Shuffle
            monotonically_increasing_id:MonotonicallyIncreasingID aes_encrypt:AesEncrypt
        """,
        why=_NOT_REPEATABLE,
        instead="use a function of the records, such as xxhash64(…)",
    ),
    Restriction(
        functions="""
            first:First first_value:First last:Last last_value:Last any_value:AnyValue
        """,
        why=_NOT_REPEATABLE,
        instead="use min_by(…, event_time) or max_by(…, event_time)",
    ),
    Restriction(
        functions="""
            collect_list:CollectList collect_set:CollectSet collect_union:CollectUnion
            array_agg:CollectList listagg:ListAgg string_agg:ListAgg
        """,
        why=_NOT_REPEATABLE,
        instead="use count, min or max, or keep the rows as they are",
    ),
    Restriction(
        functions="""
            kll_sketch_agg_bigint:KllSketchAggBigint kll_sketch_agg_float:KllSketchAggFloat
            kll_sketch_agg_double:KllSketchAggDouble kll_merge_agg_bigint:KllMergeAggBigint
            kll_merge_agg_float:KllMergeAggFloat kll_merge_agg_double:KllMergeAggDouble
        """,
        why=_NOT_REPEATABLE,
        instead="use percentile(…, 0.5)",
    ),
    Restriction(
        functions="collate:Collate+ResolvedCollation",
        why="compares strings by other rules than their bytes",
        instead="compare lower(…) of strings",
    ),
    Restriction(functions="range:Range sql_keywords:SQLKeywords collations:Collations", why=_TABLE_FUNCTION),
)
"""Functions that transforms may not call, because other nodes replay their results bit for bit."""

REFUSED: Final = (
    Restriction(
        functions="""
            reflect:CallMethodViaReflection java_method:CallMethodViaReflection try_reflect:TryReflect
        """,
        classes=names_in(
            "ReflectExpression PythonUDF PythonUDAF PythonUDTF ScalaUDF ScalaUDAF ScalaAggregator SQLScalarFunction "
            "SQLFunctionExpression HiveGenericUDF HiveSimpleUDF UserDefinedPythonFunction ApplyFunctionExpression"
        ),
        why="calls code outside the query",
    ),
    Restriction(
        functions="""
            xpath:XPathList xpath_boolean:XPathBoolean xpath_double:XPathDouble xpath_float:XPathFloat
            xpath_int:XPathInt xpath_long:XPathLong xpath_number:XPathDouble xpath_short:XPathShort
            xpath_string:XPathString from_xml:XmlToStructs schema_of_xml:SchemaOfXml
        """,
        why="reads XML, which can name files and addresses to be read",
        instead="use regexp_extract(…), or convert the XML before it is ingested",
    ),
    Restriction(
        functions="""
            from_avro:FromAvro to_avro:ToAvro schema_of_avro:SchemaOfAvro from_protobuf:FromProtobuf
            to_protobuf:ToProtobuf
        """,
        classes=names_in(
            "AvroDataToCatalyst CatalystDataToAvro ProtobufDataToCatalyst CatalystDataToProtobuf"
        ),
        why="reads schemas from files or addresses",
        instead="declare the format of the source instead, whose records then have columns",
    ),
    Restriction(
        functions="""
            input_file_name:InputFileName input_file_block_start:InputFileBlockStart
            input_file_block_length:InputFileBlockLength current_user:CurrentUser session_user:CurrentUser
            user:CurrentUser current_catalog:CurrentCatalog current_database:CurrentDatabase
            current_schema:CurrentDatabase current_path:CurrentPath
            spark_partition_id:SparkPartitionID version:SparkVersion python_worker_logs:PythonWorkerLogs
        """,
        classes=names_in("VariableReference GetVariable"),
        why=_MORE_THAN_RECORDS,
    ),
    Restriction(functions="measure:Measure", why="reads metric views, which a dataset is not"),
)

SYNTAX: Final = names_in(
    # Columns, values, and what is written with operators and keywords
    "Alias AttributeReference Literal OuterReference LateralColumnAliasReference GetArrayItem GetArrayStructFields "
    "GetMapValue GetStructField LambdaFunction NamedLambdaVariable LikeAll LikeAny NotLikeAll NotLikeAny PipeOperator "
    "SortOrder With CommonExpressionDef CommonExpressionRef KnownNullable KnownNotNull TryEval NullIfResult "
    "Unnest JsonTable "
    # Sub-queries
    "Exists InSubquery LateralSubquery ListQuery ScalarSubquery "
    # Aggregates, OVER and PIVOT
    "AggregateExpression PivotFirst WindowExpression WindowSpecDefinition SpecifiedWindowFrame CurrentRow "
    "UnboundedFollowing UnboundedPreceding "
    # Dates, times and intervals
    "DateAddInterval DateAddYMInterval DatetimeSub DivideDTInterval DivideInterval DivideYMInterval MultiplyDTInterval "
    "MultiplyInterval MultiplyYMInterval PreciseTimestampConversion SubtractDates SubtractTimes SubtractTimestamps "
    "TimeAddInterval TimestampAdd TimestampAddInterval TimestampAddYMInterval TimestampDiff GetTimestamp "
    "ExtractANSIIntervalYears ExtractANSIIntervalMonths ExtractANSIIntervalDays ExtractANSIIntervalHours "
    "ExtractANSIIntervalMinutes ExtractANSIIntervalSeconds ExtractIntervalYears ExtractIntervalMonths "
    "ExtractIntervalDays ExtractIntervalHours ExtractIntervalMinutes ExtractIntervalSeconds SecondWithFraction "
    "SecondWithFractionNanos SecondsOfTimeWithFraction"
)
"""Classes of expressions that are not functions."""

_VALUE_OPTIONS: Final = names_in(
    "dateFormat locale mode timeFormat timeZone timestampFormat timestampNTZFormat"
)
_JSON_OPTIONS: Final = _VALUE_OPTIONS | names_in(
    "allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros "
    "allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames columnNameOfCorruptRecord dropFieldIfAllNull "
    "ignoreNullFields inferTimestamp prefersDecimal pretty primitivesAsString singleVariantColumn sortKeys "
    "writeNonAsciiCharacterAsCodePoint"
)
_CSV_OPTIONS: Final = _VALUE_OPTIONS | names_in(
    "charToEscapeQuoteEscaping columnNameOfCorruptRecord comment delimiter emptyValue escape escapeQuotes "
    "ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema nanValue negativeInf nullValue positiveInf "
    "preferDate quote quoteAll sep singleVariantColumn unescapedQuoteHandling"
)
_XML_OPTIONS: Final = _VALUE_OPTIONS | names_in(
    "arrayElementName attributePrefix declaration indent nullValue rootTag rowTag valueTag"
)
OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "from_json": _JSON_OPTIONS,
    "schema_of_json": _JSON_OPTIONS,
    "to_json": _JSON_OPTIONS,
    "from_csv": _CSV_OPTIONS,
    "schema_of_csv": _CSV_OPTIONS,
    "to_csv": _CSV_OPTIONS,
    "to_xml": _XML_OPTIONS,
}
"""The options that functions accept in a map(…), all on the format of values: none is a file, an address or a codec."""


def classes_by_function(text: str) -> Mapping[str, tuple[str, ...]]:
    """Return the classes of each function in a listing, in order."""
    pairs = (word.partition(":") for word in text.split())
    return {name: tuple(filter(None, classes.split("+"))) for name, _, classes in pairs}


def _restrictions_of(
    restrictions: Iterable[Restriction],
) -> tuple[Mapping[str, Restriction], Mapping[str, tuple[str, Restriction]]]:
    """Return the restrictions by function, and by class with the name of its function (empty if it has none)."""
    functions: dict[str, Restriction] = {}
    classes: dict[str, tuple[str, Restriction]] = {}
    for restriction in restrictions:
        classes.update(dict.fromkeys(restriction.classes, ("", restriction)))
        for name, own in classes_by_function(restriction.functions).items():
            functions[name] = restriction
            for class_ in own:
                classes.setdefault(class_, (name, restriction))  # the first of several names
    return functions, classes


_OF_SEVERAL_ROWS: Final = Restriction(
    functions=" ".join(IN_TRANSFORMS[topic] for topic in ("aggregates", "OVER")),
    classes=names_in("AggregateExpression PivotFirst WindowExpression UnresolvedWindowExpression"),
    why="is computed from several records",
)
REFUSED_FUNCTIONS, REFUSED_CLASSES = _restrictions_of(REFUSED)
NOT_ROW_WISE_FUNCTIONS, NOT_ROW_WISE_CLASSES = _restrictions_of(
    (_OF_SEVERAL_ROWS, *(restriction for restriction in AD_HOC_ONLY if restriction.why == _NOT_REPEATABLE))
)
"""Functions and classes that depend on more than the values of one row, which preprocess queries must not use."""
AD_HOC_FUNCTIONS, AD_HOC_CLASSES = _restrictions_of(AD_HOC_ONLY)
_FUNCTIONS: Final = classes_by_function(" ".join(IN_TRANSFORMS.values()))
ALLOWED_FUNCTIONS: Final = frozenset(_FUNCTIONS) | frozenset(AD_HOC_FUNCTIONS)
ALLOWED_CLASSES: Final = SYNTAX.union(*_FUNCTIONS.values()) | frozenset(AD_HOC_CLASSES)
"""Classes that plans of ad-hoc queries may contain. Plans of transforms may not contain `AD_HOC_CLASSES`."""
